"""The step of the schema stage."""

from __future__ import annotations

import logging
from typing import Any

from airflow_hops.artifacts import Artifact, BadInput
from airflow_hops.runtime.context import StepContext
from airflow_hops.runtime.schema.files import SCHEMA_FILE, to_text
from airflow_hops.runtime.schema.infer import infer_schema
from airflow_hops.runtime.statistics import STATISTICS_FILE, load_statistics

log = logging.getLogger(__name__)


def run(context: StepContext, **thresholds: Any) -> Artifact:
    """The step: infers the schema and freezes it; where there is a frozen one, returns that untouched.

    Args:
        context: The step's context; input ``statistics``, whose split ``train`` counts.
        **thresholds: As :func:`infer_schema`.
    """
    statistics = context.input("statistics")
    output = context.spec.output
    if output is not None and context.store.exists(output.uri):
        return context.store.manifest(output.uri).reference(output.uri)
    path = context.local("statistics") / "train" / STATISTICS_FILE
    if not path.exists():
        raise BadInput(f"{statistics.uri}: no statistics of the split 'train', from which the schema is inferred")
    columns: dict[str, Any] = {name: statistics.properties.get(name) for name in ("label", "key", "time")}
    schema = infer_schema(load_statistics(path), **columns, **thresholds)
    with context.output() as writer:
        (writer.path / SCHEMA_FILE).write_text(to_text(schema))
        log.info("Inferred and frozen: %d features, %d with a domain", len(schema.feature), len(schema.string_domain))
        return writer.commit(
            metrics={"features": len(schema.feature)},
            properties={**columns, "features": [feature.name for feature in schema.feature]},
        )
