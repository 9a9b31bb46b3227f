"""Registers the definitions of a feature repository, and keeps the plan and the definitions as an artifact."""

from __future__ import annotations

import json
import logging

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.errors import BadInput
from airflow_hops.core.owners import check_owner
from airflow_hops.core.store.owners import claim
from airflow_hops.extensions.feature_store.core.stored_features import (
    DEFINITIONS_NAME,
    OWNED,
    PLAN_NAME,
    FeatureDefinitionsProperties,
)
from airflow_hops.extensions.feature_store.ml.repository import (
    apply,
    definitions_of,
    open_repository,
    owned_name,
    plan,
    read_definitions,
)
from airflow_hops.ml.step.context import StepContext

log = logging.getLogger(__name__)


def run(context: StepContext, *, repository: str, allow_deletes: bool = False) -> Artifact:
    """Writes ``plan.json`` and ``definitions.json``.

    Parameters are those of ``ApplyFeaturesOperator``.

    Raises:
        BadInput: the repository is invalid, something would be deleted, or the definitions that would change belong to
            another DAG.
    """
    with open_repository(repository) as (store, folder):
        contents = read_definitions(folder, store.config)
        changes = plan(store, contents)
        for change in changes:
            log.info("Plan: %s", change)
        deleted = [change for change in changes if change.action == "delete"]
        if deleted and not allow_deletes:
            raise BadInput(
                f"feature repository {repository!r}: the plan deletes {deleted[0].kind} {deleted[0].name!r} with its "
                "values in the online store; restore the definition, or set allow_deletes=True"
            )
        dag_id, name = context.spec.producer.dag_id, owned_name(store.config)
        owners = claim(context.store, OWNED, name, dag_id)
        if changes:
            advice = f"rename the project, or have an owner added by: airflow hops features owners {name} DAG ..."
            check_owner(owners, dag_id, f"feature project {store.project!r}", f"{changes[0]}: not applied; {advice}")
            apply(store, contents)
        else:
            log.info("Plan: no changes")
        definitions = definitions_of(store)
    with context.output() as writer:
        (writer.path / PLAN_NAME).write_text(json.dumps([change.to_dict() for change in changes], indent=1))
        (writer.path / DEFINITIONS_NAME).write_text(json.dumps(definitions.to_dict(), indent=1))
        return writer.commit(
            metrics={"views": len(definitions.views), "changes": len(changes)},
            properties=FeatureDefinitionsProperties(
                project=definitions.project,
                owned_name=name,
                fingerprint=definitions.fingerprint,
                changes=len(changes),
                views=tuple(view.name for view in definitions.views),
            ).to_dict(),
        )
