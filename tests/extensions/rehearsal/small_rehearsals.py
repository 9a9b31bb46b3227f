"""A small report of a rehearsal, and a hook that writes it instead of running the step."""

from __future__ import annotations

import itertools
import json
from typing import Any

from world import World, write_artifact

from airflow_hops.core.artifacts.artifact import Artifact, Producer
from airflow_hops.core.monitor_reports import note_report
from airflow_hops.core.steps.protocol import StepResult, StepSpec
from airflow_hops.core.store import ArtifactStore
from airflow_hops.extensions.rehearsal.core.rehearsal import (
    REHEARSAL,
    REPORT_FILE,
    PowerAtSize,
    Rehearsal,
    RehearsedFault,
    RehearsedFeature,
    RehearsedWindow,
)
from airflow_hops.runner.runtime import RuntimeHook

DAY_S = 86_400.0


BLIND = "mean_departure_delay_of_the_same_carrier_within_the_last_24_hours"


def small_rehearsal(model: str = "churn", version: int = 2) -> Rehearsal:
    """Returns a report of two found faults, one that is found too late, and three that are not found."""
    none = (None, None)
    curve = tuple(PowerAtSize(size, (share, share / 2, 1.0)) for size, share in ((0.2, 0.1), (0.4, 0.8), (1.0, 1.0)))
    days = [f"2026-11-{day:02}T00:00:00+00:00" for day in range(1, 31)]
    windows = [RehearsedWindow(*both, 1000, "stable") for both in itertools.pairwise(days)]
    return Rehearsal(
        model,
        version,
        "captured",
        DAY_S,
        metric="auc",
        false_alarms=(1 / 30, 0.01, 0.17),
        requests=1,
        windows=(RehearsedWindow("", days[0], 1000, "drift", ("plan", "age"), True, "drifted"), *windows),
        features=(
            RehearsedFeature("plan", (0.1, 0, 0.2), state="weak", advice="SkewOperator(min_rows=4000)", because="Late"),
            RehearsedFeature("age", (0.9, 0.8, 1), state="drifting", because="Called drifted in 27 of 30"),
            RehearsedFeature("[b]amount", (0, 0, 0.1)),
            RehearsedFeature(BLIND, (0, 0, 0.1), state="blind", advice="SkewOperator(thresholds={})"),
        ),
        faults=(
            RehearsedFault("plan", "missing", "share", None, none, 1.0, "all rows missing", effect=0.2, loss=-0.05),
            RehearsedFault(BLIND, "shift", "sd", None, none, 5.0, "shift of 5 standard deviations", effect=0.3),
            RehearsedFault(
                *("[b]amount", "units", "share", 0.4, (0.3, 0.5), 1.0, "40% of the rows times 100"), curve=curve,
                after=3, verdict="pipeline_fault", cause="unit_change", effect=0.1,
            ),
            RehearsedFault("[b]amount", "shift", "sd", 0.5, none, 5.0, "shift of 0.5", after=1, retraining=True),
            RehearsedFault("[b]amount", "scale", "factor", 1.5, none, 10.0, "values times 1.5"),
            RehearsedFault("", "labels", "share", None, none, 1.0, "100% of the labels flip"),
        ),
        notes=("Few windows",),
    )  # fmt: skip


def write_rehearsal(store: ArtifactStore, report: Rehearsal, producer: Producer) -> str:
    """Writes a report and lists it; returns the artifact's address."""
    artifact = write_artifact(store, REHEARSAL, {REPORT_FILE: json.dumps(report.to_dict())}, producer)
    note_report(store, report.model_name, artifact, [report.version], report.windows[-1].end, producer)
    return artifact.uri


def write_instead(world: World, specs: list[StepSpec]) -> None:
    """Lets steps write the small report; their specs are added to ``specs``."""

    def run(hook: RuntimeHook, spec: StepSpec, **_: Any) -> StepResult:
        specs.append(spec)
        text = json.dumps(small_rehearsal().to_dict())
        return StepResult(write_artifact(world.store, "rehearsal", {REPORT_FILE: text}, spec.producer).to_dict(), True)

    world.patch.setattr(RuntimeHook, "run", run)


def serve(world: World) -> Artifact:
    """Deploys the model; returns its artifact, of the DAG ``dag``."""
    model = world.connect().artifact("model")
    world.deployed("churn", model, version=2)
    return model
