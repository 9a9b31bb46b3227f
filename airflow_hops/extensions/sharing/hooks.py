"""Sources ``dataset://…`` of an ingest: fetched by the sharing daemon, and then read as Parquet files in the store."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

from airflow_hops.core.errors import BadInput, HopsError
from airflow_hops.core.sources.sources import Source
from airflow_hops.extensions.sharing.core.entries import SCHEME, Dataset, DatasetRef, Preview
from airflow_hops.extensions.sharing.core.records import SharingRecords
from airflow_hops.extensions.sharing.core.source import DatasetSource
from airflow_hops.extensions.sharing.core.waiting import Wait, next_wait
from airflow_hops.extensions.sharing.triggers import DatasetTrigger
from airflow_hops.runner.sources import Planning

_ALIASES = {"double": "float64", "float": "float32", "halffloat": "float16", "large_string": "string"}


def plan(sources: Mapping[str, DatasetSource], planning: Planning) -> dict[str, Source] | DatasetTrigger:
    """Returns paths of fetched data sets, or a condition to wait for; a :class:`~airflow_hops.runner.sources.Planner`.

    Raises:
        BadInput: a data set does not exist, or its licence, its columns or their types are not as expected.
        HopsError: the transfer failed, or the sharing daemon is dead.
    """
    store, event = planning.hook.store, planning.event
    if event and event["error"]:
        raise HopsError(event["error"])
    last = Wait(event["ref"], event["wants"], event["since"]) if event else None
    records, results = SharingRecords(store), dict[str, Source]()
    for table, source in sources.items():

        def accept(dataset: Dataset, preview: Preview, source: DatasetSource = source, table: str = table) -> None:
            check_licence(dataset, source.licences)
            check_columns(source, dataset, preview.types[table_of(source, table, dataset, preview)])

        step = next_wait(records, DatasetRef.parse(source.uri), last, accept=accept)
        if isinstance(step, Wait):
            conn_id = planning.hook.hops_conn_id
            return DatasetTrigger(ref=step.ref, wants=step.wants, since=step.since, conn_id=conn_id)
        preview = records.preview(step)
        assert preview is not None
        results[table] = Source(
            f"{records.place(step.ref)}/{table_of(source, table, step, preview)}",
            time_column=source.time_column,
            columns=source.columns,
            storage_options=store.storage_options,
        )
    return results


def table_of(source: DatasetSource, table: str, dataset: Dataset, preview: Preview) -> str:
    """Returns the data set's table that a source means: that of the URI's fragment, of the same name, or the only one.

    Raises:
        BadInput: there is no such table.
    """
    named = urlsplit(source.uri).fragment
    known = list(preview.types)
    result = named or (table if table in known else known[0] if len(known) == 1 else "")
    if result not in known:
        raise BadInput(
            f"table {table!r}: data set {dataset.ref} has the tables {', '.join(known)}; name one, as "
            f"{SCHEME}://{dataset.ref}#{known[0]}"
        )
    return result


def check_licence(dataset: Dataset, licences: tuple[str, ...] | None) -> None:
    """Raises BadInput if the licence is not accepted."""
    if licences is not None and dataset.entry.licence not in licences:
        raise BadInput(
            f"data set {dataset.ref}: its licence is {dataset.entry.licence!r}; the task accepts "
            f"{', '.join(map(repr, licences)) or 'none'}"
        )


def check_columns(source: DatasetSource, dataset: Dataset, types: Mapping[str, str]) -> None:
    """Raises BadInput if a column that the source names is missing, or has another type than in its ``schema``."""
    wanted = [*(source.columns or ()), *([source.time_column] if source.time_column else []), *source.schema]
    if missing := [name for name in wanted if name not in types]:
        raise BadInput(f"data set {dataset.ref}: it has no column {missing[0]!r}; it has {', '.join(types)}")
    for name, expected in source.schema.items():
        there = types[name]
        plain = there.partition("[")[0] if there.startswith("timestamp") else _ALIASES.get(there, there)
        if expected not in (there, plain):
            raise BadInput(
                f"data set {dataset.ref}: column {name!r} is {plain}, but the source's schema says {expected}; it was "
                "not downloaded. Change the schema, or convert the column in prepare"
            )
