"""Labels that became known later, joined with captured rows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_hops.core.capture_layout import FEEDBACK_FOLDER
from airflow_hops.core.errors import BadInput, MissingColumn
from airflow_hops.core.processes.remote_files import open_url
from airflow_hops.ml.readers import scan
from airflow_hops.ml.readers.joined_types import join_texts
from airflow_hops.ml.readers.rows_file import RowsFile

LABEL = "label."
"""Prefix of a label's column."""
UNNAMED = "value"
"""Name of a label that was sent without one."""

_KEYS = ("request_id", "row")
_TOLD = {"int64", "double", "bool", "string"}
"""Types of labels that the server writes."""


def read_feedback(model_folder: str | Path, storage_options: Mapping[str, object] | None = None) -> Any:
    """Reads the labels of a model.

    Args:
        model_folder: ``<capture_base_path>/<model>``: a local folder, or a URL that fsspec opens.
        storage_options: Passed to fsspec.

    Returns:
        An Arrow table of ``request_id``, ``row``, ``at`` (when the label became known), ``received_at`` and a column
        ``label.<name>`` for each label, null if a row of feedback lacks it; without rows if there is no feedback. A
        label that was sent with different types becomes text, so that a client cannot make all labels unreadable.

    Raises:
        BadInput: A file cannot be read, or was not written by the server.
    """
    fs, folder = open_url(str(model_folder), storage_options)
    fs.invalidate_cache()
    try:
        paths = sorted(fs.ls(f"{folder.rstrip('/')}/{FEEDBACK_FOLDER}", detail=False))
    except FileNotFoundError:
        paths = []
    wanted = [path for path in paths if path.endswith(".parquet") and not path.rsplit("/", 1)[-1].startswith(".")]
    tables = [scan.table([RowsFile(path, path, 0, fs)]) for path in wanted]
    if not tables:
        time_type = pa.timestamp("us", "UTC")
        fields = [("request_id", pa.string()), ("row", pa.int32()), ("at", time_type), ("received_at", time_type)]
        return pa.schema(fields).empty_table()
    wide = _wide_types(tables, str(model_folder))
    return pa.concat_tables(
        # Integers beyond 2^53 become the nearest float.
        [table.cast(pa.schema([wide[name] for name in table.column_names]), safe=False) for table in tables],
        promote=True,
    )


def join_feedback(captured: pa.Table, feedback: pa.Table) -> pa.Table:
    """Joins captured rows with their labels, by request id and row.

    Args:
        captured: An Arrow table of captured rows, with the columns ``request_id`` and ``row``.
        feedback: An Arrow table of labels, as :func:`read_feedback` returns it. If a row has several labels of a name,
            the one that became known last is used; if several did, the one received last.

    Returns:
        All captured rows in their order, with the feedback's columns ``label.*``: null if a row has no label.

    Raises:
        BadInput: A table lacks these columns.
    """
    for what, table in (("captured rows", captured), ("feedback", feedback)):
        lacking = [name for name in _KEYS if name not in table.column_names]
        if lacking:
            raise MissingColumn(what, lacking[0]).with_text(
                f"{what} without a column {lacking[0]!r}; found {', '.join(table.column_names)}"
            )
    wanted = _key(captured)
    joined = captured
    ordered = feedback.sort_by([("at", "ascending"), ("received_at", "ascending")])
    for name in (name for name in feedback.column_names if name.startswith(LABEL)):
        known = ordered.filter(pc.is_valid(ordered[name]))
        numbered = pa.table({"key": _key(known), "number": pa.array(range(known.num_rows), pa.int64())})
        latest = numbered.group_by("key").aggregate([("number", "max")])
        result = pc.index_in(wanted, value_set=latest["key"].combine_chunks())
        numbers = latest["number_max"].combine_chunks().take(result.combine_chunks())
        joined = joined.append_column(name, known[name].combine_chunks().take(numbers))
    return joined


def _key(table: pa.Table) -> pa.ChunkedArray:
    key = pc.binary_join_element_wise(table["row"].cast(pa.string()), table["request_id"].cast(pa.string()), " ")
    return key if isinstance(key, pa.ChunkedArray) else pa.chunked_array([key])


def _wide_types(tables: list[pa.Table], where: str) -> dict[str, pa.Field]:
    """Returns one field per column: a label with integers and floats becomes a float, with other types a string."""
    fields: dict[str, pa.Field] = {}
    for field in (field for table in tables for field in table.schema):
        known = fields.setdefault(field.name, field)
        if known.type != field.type:
            types = {str(known.type), str(field.type)}
            if not field.name.startswith(LABEL) or not types <= _TOLD:
                raise BadInput(f"{where}: {field.name!r} is of types {' and '.join(sorted(types))}; expected one")
            fields[field.name] = pa.field(field.name, join_texts(known.type, field.type))
    return fields
