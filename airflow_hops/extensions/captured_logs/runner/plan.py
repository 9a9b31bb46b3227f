"""Plans which part of a log a window reads, by a step, since the runtime environment has the libraries of logs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.models.logged_windows import LoggedWindow
from airflow_hops.core.steps.protocol import StepSpec
from airflow_hops.extensions.captured_logs.core.records import LogRecords
from airflow_hops.extensions.captured_logs.core.source import CapturedSource
from airflow_hops.extensions.captured_logs.core.windows import WindowPlan
from airflow_hops.runner.sources import Planning


def plan(sources: Mapping[str, CapturedSource], planning: Planning) -> dict[str, Any]:
    """Returns the plan of each log's window, as :class:`~airflow_hops.runner.sources.Planner`."""
    spec = StepSpec(
        step=planning.producer.task_id,
        entry="airflow_hops.extensions.captured_logs.ml.plan:plan_logs",
        params={
            "sources": {table: source.to_dict() for table, source in sources.items()},
            "window": list(planning.window),
        },
        producer=planning.producer,
    )
    return dict(planning.hook.run(spec, launcher=planning.launcher, cache=False).value)


def commit(
    sources: Mapping[str, CapturedSource], plans: Mapping[str, Any], planning: Planning, snapshot: Artifact
) -> None:
    """Records that the windows are taken, as :class:`~airflow_hops.runner.sources.Committer`.

    Raises:
        HopsError: another run has taken entries of a log since its window was planned.
    """
    for table, source in sources.items():
        plan = WindowPlan.from_dict(plans[table])
        LogRecords.of_plan(planning.hook.store, plan).commit(plan, LoggedWindow(source.model, snapshot.uri, table))
