"""Operator that reads raw tables in a window of time into a snapshot."""

from __future__ import annotations

import asyncio
import pkgutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import XComArg

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.errors import BadInput
from airflow_hops.core.retraining.triggered import extras, requested_window
from airflow_hops.core.sources.sources import REJECTED_FOLDER, RowSource, Source, row_source
from airflow_hops.core.steps.protocol import StepResult
from airflow_hops.operators.base import producer_of, skipped
from airflow_hops.operators.spark import SparkOperator
from airflow_hops.runner.arguments import BadArgument, Time, is_late, is_output, rendered_mapping
from airflow_hops.runner.connections import state_of_sources
from airflow_hops.runner.runtime import RuntimeHook

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_hops.airflow_internals.triggers import BaseTrigger
    from airflow_hops.runner.sources import Planning

__all__ = ["IngestOperator", "Source"]


class IngestOperator(SparkOperator):
    """Reads raw tables in a window of time into one ``snapshot``: a folder of Parquet files for each table.

    If the DAG run was triggered by an asset event whose ``extra`` has ``window_start`` or ``window_end``, as requests
    for retraining do, they override the arguments. If another run has already claimed the request, the task is skipped;
    so it is, with all that follows, if the snapshot has exactly the rows on which the champion was trained.

    Example::

        flights = IngestOperator(
            task_id="ingest",
            sources={
                "flights": Source("s3://raw/flights/*.csv.gz", time_column="time_hour"),
                "planes": "s3://raw/planes.csv",
            },
            window_start="{{ data_interval_start }}",
            window_end="{{ data_interval_end }}",
        )

    The DAG needs ``schedule=CronDataIntervalTimetable(...)``: otherwise Airflow 3's data intervals are empty.

    Args:
        sources: The source of each table, by the table's name: a :class:`~airflow_hops.core.sources.sources.Source`
            of files, a source of another class, its URI, or its fields. Each may be the output of another task. The
            first table is the main one, whose rows become examples. :doc:`/howto/ingest` lists the classes and their
            URI schemes. (templated)
        window_start: Start of the window, ISO 8601, UTC without a zone; None for no start. (templated)
        window_end: End of the window, ISO 8601; rows at this moment are outside. None for no end. (templated)
        **kwargs: As :class:`~airflow_hops.operators.spark.SparkOperator`. With ``deferrable``, the task also waits for
            sources in the triggerer.
    """

    entry = "airflow_hops.ml.ingest:run"
    output_kind: ClassVar[str | None] = "snapshot"
    template_fields: Sequence[str] = (*SparkOperator.template_fields, "sources", "window_start", "window_end")

    def __init__(
        self,
        *,
        sources: Mapping[str, RowSource | str | XComArg | Mapping[str, Any]],
        window_start: Time | datetime | None = None,
        window_end: Time | datetime | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.window_start = window_start
        self.window_end = window_end
        self.check_arguments(IngestOperator, sources=sources)
        self.sources: Any = sources if is_late(sources) else _described(sources)
        self._plans: dict[str, Any] = {}
        self._events: dict[str, Any] = {}

    def step_params(self, context: Context) -> dict[str, Any]:
        """Returns the sources, the plans of their rows, and the window, which a triggering asset event may replace."""
        start, end = self._window(context)
        replaced = {table: plan.to_dict() for table, plan in self._plans.items() if isinstance(plan, RowSource)}
        plans = {table: plan for table, plan in self._plans.items() if table not in replaced}
        params = {"sources": {**self.sources, **replaced}, "window_start": start, "window_end": end}
        return {**params, "plans": plans} if plans else params

    def run_step(self, hook: RuntimeHook, context: Context) -> StepResult:
        """Runs the step, unless other runs have claimed all requests that triggered this one.

        Raises:
            AirflowSkipException: they have; or the snapshot is that which the champion to retrain was trained on.
        """
        from airflow_hops.runner.new_rows import claim_requests, note_new_rows  # imports would slow down every DAG file

        self.sources = _described(rendered_mapping("sources", self.sources))
        requests = list(extras(context.get("triggering_asset_events")))
        if reason := claim_requests(hook.store, requests, producer_of(context)):
            raise skipped(context["ti"], reason)
        self._plan(hook, context)
        result = super().run_step(hook, context)
        snapshot = Artifact.from_dict(result.value)
        if reason := note_new_rows(hook.store, requests, producer_of(context), snapshot):
            raise skipped(context["ti"], reason)
        for committer, sources in self._by("committer").items():
            pkgutil.resolve_name(committer)(sources, self._plans, self._planning(hook, context), snapshot)
        return result

    def _window(self, context: Context) -> tuple[str | None, str | None]:
        start, end = requested_window(context.get("triggering_asset_events"))
        first, last = start or self.window_start, end or self.window_end
        if start or end:
            self.log.info("The triggering asset event asks for the window %s to %s", first, last)
        return str(first) if first else None, str(last) if last else None

    def _plan(self, hook: RuntimeHook, context: Context) -> None:
        """Plans the rows of sources with a planner; as parameters of the step, plans are part of the cache key."""
        from airflow_hops.airflow_internals.triggers import BaseTrigger  # the import would slow down every DAG file

        for planner, planned in self._by("planner").items():
            plan = pkgutil.resolve_name(planner)
            planning = self._planning(hook, context, self._events.get(planner))
            while isinstance(plans := plan(planned, planning), BaseTrigger):
                self.log.info("Waiting for %s: %r", ", ".join(planned), plans)
                if self.deferrable:
                    self.defer(trigger=plans, method_name="resume", kwargs={"planner": planner})
                planning = replace(planning, event=asyncio.run(_first_event(plans)))
            self._plans |= plans

    def _planning(self, hook: RuntimeHook, context: Context, event: Any = None) -> Planning:
        from airflow_hops.runner.sources import Planning  # the import would slow down every DAG file

        return Planning(hook, producer_of(context), self._window(context), self.chosen_launcher(hook), event)

    def _by(self, function: str) -> dict[str, dict[str, RowSource]]:
        """Returns the sources by a function that their class names, and by table."""
        result: dict[str, dict[str, RowSource]] = {}
        for table, source in ((table, row_source(table, value)) for table, value in self.sources.items()):
            if name := getattr(source, function):
                result.setdefault(name, {})[table] = source
        return result

    def resume(self, context: Context, event: Any, planner: str) -> Any:
        """Continues after the triggerer has waited."""
        self._events[planner] = event
        return self.execute(context)

    def defers_step(self) -> bool:
        """Returns whether the task may leave its step: not if its planner, which would run again, has steps, too."""
        return self.deferrable and not self._plans

    def step_cache_key_parts(self, hook: RuntimeHook) -> dict[str, str]:
        """Adds the state of the files, so that changed files are read again."""
        unplanned = {
            table: row_source(table, value)
            for table, value in {**self.sources, **self._plans}.items()
            if table not in self._plans or isinstance(value, RowSource)
        }
        return {**super().step_cache_key_parts(hook), "sources": state_of_sources(unplanned)}


def _described(sources: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of each source; an output of a task stays until it is known."""
    if not sources:
        raise BadInput("sources is empty; expected at least one table")
    if REJECTED_FOLDER in sources:
        raise BadInput(
            f"sources has a table {REJECTED_FOLDER!r}, which is the folder of records that cannot be decoded; give the "
            "table another name"
        )
    results = {table: value if is_output(value) else row_source(table, value) for table, value in sources.items()}
    for table, source in results.items():
        if isinstance(source, Source) and not is_late(source.uri) and not _is_address(source.uri):
            raise BadArgument(f"sources[{table!r}] is {source.uri!r}; expected an absolute path or a URI")
    return {table: source if is_output(source) else source.to_dict() for table, source in results.items()}


async def _first_event(trigger: BaseTrigger) -> Any:
    """Returns the payload of a trigger's first event."""
    return (await anext(trigger.run())).payload


def _is_address(uri: Any) -> bool:
    return isinstance(uri, str) and ("://" in uri or Path(uri).expanduser().is_absolute())
