"""Schemas that a person has edited: what they change, and the anomalies that a validation would still find."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_hops.core.contract.artifacts import Artifact, BadInput, read_json
from airflow_hops.core.contract.properties import StatisticsProperties
from airflow_hops.ml.queries.place import Place
from airflow_hops.ml.queries.schemas import compare
from airflow_hops.ml.schemas import TRAINING
from airflow_hops.ml.schemas.files import parse_schema
from airflow_hops.ml.stages.validation.validate import Anomaly, list_anomalies, validate_statistics
from airflow_hops.ml.statistics.files import STATISTICS_FILE, load_statistics

__all__ = ["check"]


def check(place: Place, params: Mapping[str, Any]) -> dict[str, Any]:
    """Parses a schema, compares it with the one in force, and has TFDV validate a validation's statistics against it.

    Args:
        place: Where the artifacts are.
        params: ``text`` and ``source``; ``before`` and ``before_source``, the schema in force; ``artifact``, of kind
            ``anomalies``; ``statistics``, what it validated, and ``previous``, those of the span before, or null.

    Returns:
        ``changes``, as :func:`~airflow_hops.ml.queries.schemas.compare`; ``features``, names of the schema's;
        ``anomalies``, what would remain: ``split``, ``feature``, ``severity``, ``summary``; null without statistics.

    Raises:
        BadInput: the text does not parse, or has no feature.
    """
    schema = parse_schema(params["text"], params["source"])
    if not schema.feature:
        raise BadInput(f"{params['source']}: no feature in it, expected a schema of the pipeline's examples")
    sides = {"after": params["text"], "after_source": params["source"]}
    changes = compare(place, {**{name: params[name] for name in ("before", "before_source")}, **sides})
    names = [feature.name for feature in schema.feature]
    if not params["statistics"]:
        return {"changes": changes, "features": names, "anomalies": None}
    report = read_json(place.folder(params["artifact"]) / "anomalies.json")
    of = StatisticsProperties.of(Artifact.from_dict(params["statistics"]))
    folder = place.folder(params["statistics"])
    earlier = place.folder(params["previous"]) if params["previous"] else None
    results: list[Anomaly] = []
    for split in report["rows"]:
        previous = earlier / split / STATISTICS_FILE if earlier else None
        validated = validate_statistics(
            load_statistics(folder / split / STATISTICS_FILE),
            schema,
            environment=report.get("environment", TRAINING),
            previous=load_statistics(previous) if previous and previous.exists() else None,
            target=None if of.label is None else of.target,
        )
        results += list_anomalies(validated, split)
    named = ("split", "feature", "severity", "summary")
    anomalies = [{name: getattr(anomaly, name) for name in named} for anomaly in results]
    return {"changes": changes, "features": names, "anomalies": anomalies}
