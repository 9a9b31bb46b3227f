"""A small report of a rehearsal, and a hook that writes it instead of running the step."""

from __future__ import annotations

import json
from typing import Any

from world import World, write_artifact

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.steps.protocol import StepResult, StepSpec
from airflow_hops.extensions.rehearsal.core.rehearsal import (
    REPORT_FILE,
    Rehearsal,
    RehearsedFault,
    RehearsedFeature,
    RehearsedWindow,
)
from airflow_hops.runner.runtime import RuntimeHook

DAY_S = 86_400.0


def small_rehearsal() -> Rehearsal:
    """Returns a report of two found faults, one that is found too late, and three that are not found."""
    none = (None, None)
    windows = [RehearsedWindow("", f"2026-11-{day:02}T00:00:00+00:00", 1000, "stable") for day in range(1, 30)]
    return Rehearsal(
        "churn",
        2,
        "captured",
        DAY_S,
        metric="auc",
        false_alarms=(1 / 30, 0.01, 0.17),
        windows=(RehearsedWindow("", "2026-10-31T00:00:00+00:00", 1000, "drift", ("plan",)), *windows),
        features=(
            RehearsedFeature("plan", (0.1, 0, 0.2), state="weak", advice="SkewOperator(min_rows=4000)", because="Late"),
            RehearsedFeature("age", (0.9, 0.8, 1), state="drifting", because="Called drifted in 27 of 30"),
            RehearsedFeature("[b]amount", (0, 0, 0.1)),
        ),
        faults=(
            RehearsedFault("plan", "missing", "share", None, none, 1.0, "all rows missing", effect=0.2, loss=-0.05),
            RehearsedFault(
                *("[b]amount", "units", "share", 0.4, (0.3, 0.5), 1.0, "40% of the rows times 100"),
                after=3, verdict="pipeline_fault", cause="unit_change", effect=0.1,
            ),
            RehearsedFault("[b]amount", "shift", "sd", 0.5, none, 5.0, "shift of 0.5", after=1, retraining=True),
            RehearsedFault("[b]amount", "scale", "factor", 1.5, none, 10.0, "values times 1.5"),
            RehearsedFault("", "labels", "share", None, none, 1.0, "100% of the labels flip"),
        ),
        notes=("Few windows",),
    )  # fmt: skip


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
