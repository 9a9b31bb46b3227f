"""Check that a name which DAGs share, such as that of a model, belongs to the DAG that changes what it names."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_hops.core.errors import BadInput


def check_owner(owners: Sequence[str], dag_id: str, what: str, advice: str) -> None:
    """Checks that a DAG may change what has a name: it is an owner, or there is none yet.

    Args:
        owners: The DAGs that own the name.
        dag_id: The DAG.
        what: The kind and the name, for the message.
        advice: What to do, for the message.

    Raises:
        BadInput: the name has owners, and the DAG is none of them.
    """
    if owners and dag_id not in owners:
        named = " and ".join(map(repr, owners))
        raise BadInput(f"{what} belongs to DAG {named}, and this is DAG {dag_id!r}; {advice}")
