"""The step of the validation stage."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import asdict

from airflow_hops.artifacts import Artifact, RowCounts
from airflow_hops.runtime.context import StepContext
from airflow_hops.runtime.schema import SCHEMA_FILE, load_schema
from airflow_hops.runtime.statistics import STATISTICS_FILE, load_statistics
from airflow_hops.runtime.validation.validate import Anomaly, list_anomalies, to_text, validate_statistics

log = logging.getLogger(__name__)

ANOMALIES_FILE = "anomalies.json"


def run(context: StepContext, *, splits: Sequence[str] | None = None) -> Artifact:
    """The step: validates the splits; finds anomalies, and leaves what to do about them to the caller.

    Args:
        context: The step's context; inputs ``statistics`` and ``schema``, optionally ``previous``, the statistics of
            an earlier span.
        splits: Splits to validate; None for all.
    """
    statistics, folder = context.input("statistics"), context.local("statistics")
    schema = load_schema(context.local("schema") / SCHEMA_FILE)
    previous = context.local("previous") if context.has_input("previous") else None
    names = list(
        splits or statistics.properties.get("splits") or sorted(p.name for p in folder.iterdir() if p.is_dir())
    )
    found: list[Anomaly] = []
    drift: dict[str, dict[str, float]] = {}
    rows: dict[str, RowCounts] = {}
    with context.output() as writer:
        for split in names:
            current = load_statistics(folder / split / STATISTICS_FILE)
            earlier = previous / split / STATISTICS_FILE if previous else None
            anomalies = validate_statistics(
                current,
                schema,
                previous=load_statistics(earlier) if earlier and earlier.exists() else None,
                label=statistics.properties.get("label"),
            )
            (writer.path / f"{split}.pbtxt").write_text(to_text(anomalies))
            found += list_anomalies(anomalies, split)
            drift[split] = {
                ".".join(info.path.step): round(measurement.value, 6)
                for info in anomalies.drift_skew_info
                for measurement in info.drift_measurements
            }
            counted = int(current.datasets[0].num_examples)
            rows[split] = RowCounts(counted, counted)
        for anomaly in found:
            log.log(logging.ERROR if anomaly.severity == "error" else logging.WARNING, "%s", anomaly)
        errors = [str(anomaly) for anomaly in found if anomaly.severity == "error"]
        warnings = [str(anomaly) for anomaly in found if anomaly.severity == "warning"]
        report = {
            "errors": len(errors),
            "warnings": len(warnings),
            "anomalies": [asdict(anomaly) for anomaly in found],
            "drift": drift,
            "rows": {split: counts.rows_in for split, counts in rows.items()},
        }
        (writer.path / ANOMALIES_FILE).write_text(json.dumps(report, indent=1))
        return writer.commit(
            rows=rows,
            metrics={"errors": len(errors), "warnings": len(warnings)},
            # The first few are enough for a task's log; the artifact has them all.
            properties={"splits": names, "errors": errors[:20], "warnings": warnings[:20]},
        )
