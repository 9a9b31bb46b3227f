"""Ingests raw tables of any source in a window of time into one snapshot of Parquet files, in parallel parts."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.artifacts.properties import SnapshotProperties
from airflow_hops.core.sources.sources import row_source
from airflow_hops.ml.ingest.reader import ingest_table
from airflow_hops.ml.ingest.window import Window
from airflow_hops.ml.spark.pools import step_pool
from airflow_hops.ml.step.context import StepContext

log = logging.getLogger(__name__)

_MOST_WARNINGS = 20
"""Maximum warnings in the snapshot's properties."""


def run(
    context: StepContext,
    *,
    sources: Mapping[str, Mapping[str, object]],
    window_start: str | None = None,
    window_end: str | None = None,
    plans: Mapping[str, object] | None = None,
) -> Artifact:
    """Writes one snapshot with a subfolder per table.

    Parameters are those of ``IngestOperator``, and by table the plan of its rows, if its source's class has a planner.

    Raises:
        BadInput: as :func:`ingest_table`, or the window cannot be used.
        HopsError: Spark failed, or a file changed while it was read.
    """
    window = Window.parse(window_start, window_end)
    tables = context.sources({table: row_source(table, value) for table, value in sources.items()})
    plans = plans or {}
    with step_pool(context, "local[*]") as pool, context.output() as writer:
        rows, columns, warnings = {}, {}, list[str]()
        for number, (table, source) in enumerate(tables.items()):

            def progress(share: float, text: str, number: int = number, table: str = table) -> None:
                context.progress((number + share) / len(tables), f"{table}: {text}")

            folder = pool.folder(context, writer)
            counts, files = ingest_table(
                table, source, window, folder, pool, progress, plans.get(table), warnings.append
            )
            rows[table], columns[table] = counts, folder.columns(table, files)
            writer.add(files)
            reasons = "".join(f", {count} {reason}" for reason, count in counts.rejected.items())
            log.info("%s: %d rows in, %d out%s", table, counts.rows_in, counts.rows_out, reasons)
        for warning in warnings:
            log.warning("%s", warning)
        if len(warnings) > _MOST_WARNINGS:
            others = len(warnings) - _MOST_WARNINGS
            warnings[_MOST_WARNINGS:] = [f"and {others} more, which the log of the ingest has"]
        return writer.commit(
            rows=rows,
            metrics={"rows": sum(counts.rows_out for counts in rows.values())},
            properties=SnapshotProperties(
                window.bounds, tuple(rows), columns, plans or None, tuple(warnings) or None
            ).to_dict(),
        )
