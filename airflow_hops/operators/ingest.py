"""Ingest: raw tables in a window of time into a snapshot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import XComArg

from airflow_hops.contract.artifacts import BadInput
from airflow_hops.contract.sources import Source
from airflow_hops.hooks.runtime import RuntimeHook
from airflow_hops.operators.base import HopsOperator
from airflow_hops.store.source_files import fingerprint_of_sources

if TYPE_CHECKING:
    from airflow.sdk import Context

__all__ = ["IngestOperator", "Source"]


class IngestOperator(HopsOperator):
    """Reads raw tables in a window of time into one ``snapshot``: a folder of Parquet files for each table.

    Where the DAG run was triggered by an asset event whose ``extra`` has ``window_end``, as the skew monitor's request
    for a retraining does, the window ends there, whatever ``window_end`` says.

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

    The DAG needs ``schedule=CronDataIntervalTimetable(...)``: without it, Airflow 3's data intervals have no length.

    Args:
        sources: The source of each table, by the table's name: a :class:`~airflow_hops.contract.sources.Source`, its
            URI, or its fields. The URI may be the output of another task. The first table is the main one, whose rows
            become examples. (templated)
        window_start: Start of the window, ISO 8601, UTC without a zone; None for no start. (templated)
        window_end: End of the window, ISO 8601; rows at this moment are outside. None for no end. (templated)
    """

    entry = "airflow_hops.runtime.ingest:run"
    output_kind: ClassVar[str | None] = "snapshot"
    template_fields: Sequence[str] = (*HopsOperator.template_fields, "sources", "window_start", "window_end")

    def __init__(
        self,
        *,
        sources: Mapping[str, Source | str | XComArg | Mapping[str, Any]],
        window_start: str | None = None,
        window_end: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if not sources:
            raise BadInput("sources is empty; expected at least one table")
        self.sources = {
            table: Source.from_value(table, {"uri": value} if isinstance(value, XComArg) else value).to_dict()
            for table, value in sources.items()
        }
        self.window_start = window_start
        self.window_end = window_end

    def step_params(self, context: Context) -> dict[str, Any]:
        """The sources and the window, which a triggering asset event may extend."""
        window_end = str(self.window_end) if self.window_end else None
        if requested := requested_window_end(context):
            self.log.info("The triggering asset event asks for window_end %s (instead of %s)", requested, window_end)
            window_end = requested
        return {
            "sources": self.sources,
            "window_start": str(self.window_start) if self.window_start else None,
            "window_end": window_end,
        }

    def step_cache_key_parts(self, hook: RuntimeHook) -> dict[str, str]:
        """The state of the files, so that a changed one is read anew."""
        sources = {table: Source.from_value(table, value) for table, value in self.sources.items()}
        return {"sources": fingerprint_of_sources(sources)}


def requested_window_end(context: Context) -> str | None:
    """The latest ``window_end`` in the extras of the asset events that triggered the DAG run, or None."""
    events = (event for events in (context.get("triggering_asset_events") or {}).values() for event in events)
    ends = [str(event.extra["window_end"]) for event in events if (event.extra or {}).get("window_end")]
    return max(ends, default=None, key=_as_utc)


def _as_utc(text: str) -> datetime:
    try:
        time = datetime.fromisoformat(text)
    except ValueError as error:
        raise BadInput(f"the asset event's window_end is {text!r}, expected a time in ISO 8601") from error
    return time.replace(tzinfo=time.tzinfo or UTC)
