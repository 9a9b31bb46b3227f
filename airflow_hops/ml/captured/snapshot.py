"""Captured rows that were ingested, such as those of a Kafka topic, as the captured requests of a model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.capture_layout import folder_name, name_time
from airflow_hops.core.errors import BadInput, ConnectionFieldError, HopsError, MissingColumn
from airflow_hops.core.models.logged_windows import LoggedWindow, logged_windows
from airflow_hops.core.parquet_writer import write_parquet
from airflow_hops.core.store import ArtifactStore
from airflow_hops.core.times import as_utc
from airflow_hops.ml.captured.requests import CapturedRequests
from airflow_hops.ml.readers import scan
from airflow_hops.ml.step.context import StepContext

_EXPECTED = ("request_id", "row", "model", "version", "captured_at")


def captured_requests(context: StepContext, model_name: str) -> CapturedRequests:
    """Returns the captured requests of the input ``captured``, a snapshot, or else those that the connection names.

    Raises:
        BadInput: the snapshot has none of the model, or the connection names none.
    """
    if context.has_input("captured"):
        snapshot = context.input("captured"), context.local("captured")
        return requests_of_snapshot(*snapshot, model_name, context.scratch)
    requests = CapturedRequests.of(context.spec.services, context.store, model_name)
    if requests is None:
        raise ConnectionFieldError("serving_capture_path").with_text(
            "the connection's field 'serving_capture_path' is empty; expected the folder given to the model server "
            "as --capture_base_path; if the server sends captured requests to a topic, ingest the topic, and give "
            "the output of IngestOperator as captured"
        )
    return requests


def requests_of_snapshot(snapshot: Artifact, folder: Path, model_name: str, scratch: Path) -> CapturedRequests:
    """Writes a model's rows of a snapshot as the model server writes them, and returns them.

    A topic holds the rows of all models and versions; its table has the columns of all, null where a model lacks them.
    Each file has the rows of one version, without the columns that are null in all of them. There is none of an empty
    window.

    Args:
        snapshot: The snapshot.
        folder: Its folder on this machine.
        model_name: The model.
        scratch: Folder for the files.

    Raises:
        BadInput: a table does not have captured rows of the model.
    """
    place = scratch / "snapshot" / folder_name(model_name)
    place.mkdir(parents=True)
    models = set[str]()
    for number, path in enumerate(sorted(folder.glob("*/*.parquet"))):
        table = scan.table([path])
        if not len(table):
            continue
        _check(table, snapshot.uri, path.parent.name)
        models.update(pc.unique(table["model"]).to_pylist())
        _write(table.filter(pc.equal(table["model"], model_name)), place, number)
    if models and model_name not in models:
        listed = ", ".join(sorted(map(repr, models))) or "none"
        raise BadInput(f"{snapshot.uri} has no captured rows of model {model_name!r}; it has rows of {listed}")
    return CapturedRequests(str(place.parent), model_name)


def requests_of_logs(context: StepContext, model_name: str, since: str) -> CapturedRequests:
    """Writes the rows since a time of all ingested windows of a model's log, once in a step; errors as of its rows."""
    place = context.scratch / "logs" / folder_name(model_name)
    if not place.exists():
        place.mkdir(parents=True)
        for number, table in enumerate(_logged_rows(context.store, model_name, since)):
            numbers = (_as_floats(each) if each.name.startswith("output.") else each for each in table.schema)
            _write(table.cast(pa.schema(numbers)), place, number)
    return CapturedRequests(str(place.parent), model_name)


def _as_floats(field: pa.Field) -> pa.Field:
    """Returns a field of floats for integers, as which a window of a log may have all its predictions."""
    if pa.types.is_list(field.type):
        return field.with_type(pa.list_(_as_floats(field.type.value_field)))
    return field.with_type(pa.float64()) if pa.types.is_integer(field.type) else field


def logged_requests(store: ArtifactStore, model_name: str, since: str) -> dict[int, int]:
    """Returns the number of requests of each version since a time, ISO 8601, in the ingested windows of its log.

    Raises:
        BadInput: a table does not have captured rows.
        HopsError: a window is being ingested again, or the store does not answer.
    """
    tables = [table.select(["version", "request_id"]) for table in _logged_rows(store, model_name, since, _EXPECTED)]
    if not tables:
        return {}
    counted = pa.concat_tables(tables).group_by("version").aggregate([("request_id", "count_distinct")])
    return dict(zip(counted["version"].to_pylist(), counted["request_id_count_distinct"].to_pylist(), strict=True))


def _logged_rows(
    store: ArtifactStore, model_name: str, since: str, columns: Sequence[str] | None = None
) -> Iterator[pa.Table]:
    """Yields the rows of each file, without those that another task has ingested, too."""
    start, known = pa.scalar(as_utc(since), pa.timestamp("us", "UTC")), list[pa.Array]()
    for windows in logged_windows(store, model_name):
        others = pa.chunked_array(known, pa.string())
        for window in windows:
            for table in _tables(store, window, columns) if window.has_rows_since(since) else ():
                is_due = pc.and_(pc.equal(table["model"], model_name), pc.greater_equal(table["captured_at"], start))
                rows = table.filter(is_due)
                ids = [rows[name].cast(pa.string()) for name in ("row", "request_id")]
                places = pc.binary_join_element_wise(*ids, " ")
                known += places.chunks
                yield rows.filter(pc.invert(pc.is_in(places, value_set=others)))


def _tables(store: ArtifactStore, window: LoggedWindow, columns: Sequence[str] | None) -> Iterator[pa.Table]:
    try:
        folder = store.local(store.manifest(window.snapshot).reference(window.snapshot)) / window.table
        tables = [scan.table([path], columns) for path in sorted(folder.glob("*.parquet"))]
    except MissingColumn:
        raise
    except (BadInput, OSError) as error:
        raise HopsError(f"a window of the log of {window.model_name!r} is not there now: {error}") from error
    for table in filter(len, tables):
        _check(table, window.snapshot, window.table)
        yield table


def _check(table: pa.Table, uri: str, name: str) -> None:
    """Checks that a table has the columns of captured rows."""
    if lacking := [column for column in _EXPECTED if column not in table.column_names]:
        raise MissingColumn(uri, lacking[0]).with_text(
            f"{uri}, table {name!r}: there is no column {lacking[0]!r}; expected captured requests, as files of "
            f"--capture_base_path have them; found {', '.join(table.column_names)}"
        )


def _write(table: pa.Table, place: Path, number: int) -> None:
    """Writes a file of each version's rows, without the columns that are null in all of them."""
    for version in pc.unique(table["version"]).to_pylist():
        rows = table.filter(pc.equal(table["version"], pa.scalar(version)))
        until = pc.max(rows["captured_at"]).as_py()
        filled = [name for name in rows.column_names if rows[name].null_count < len(rows)]
        write_parquet(rows.select(filled), place / f"{name_time(until)}-v{version}-{number:05}.parquet")
