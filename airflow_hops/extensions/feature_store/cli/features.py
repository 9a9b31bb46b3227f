"""``airflow hops features``: the owners of feature definitions."""

from __future__ import annotations

from argparse import Namespace

from airflow_hops.airflow_internals.cli import suppress_logs_and_warning
from airflow_hops.cli.owners import change_owners
from airflow_hops.extensions.feature_store.core.stored_features import OWNED


@suppress_logs_and_warning
def owners(args: Namespace) -> None:
    """Names the DAGs that may change the definitions of a project, or lists the owners."""
    change_owners(args, OWNED)
