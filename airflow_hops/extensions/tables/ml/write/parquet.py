"""Writes a folder of Parquet files, with one for each batch: ``hops_batch=<batch>/rows.parquet``.

Special characters of the batch are ``%`` and their ASCII code, as in Hive's folders of partitions.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_hops.core.errors import BadInput
from airflow_hops.core.parquet_writer import parquet_writer
from airflow_hops.core.processes.remote_files import RemoteFiles
from airflow_hops.core.processes.temporary_folders import temporary_folder
from airflow_hops.extensions.tables.core.tables import BATCH, Table
from airflow_hops.extensions.tables.ml.write.table_writer import TableWriter
from airflow_hops.ml.readers.types import normalised

_ESCAPED = re.compile(r"[^\w .,@~\x80-\U0010ffff-]", re.ASCII)


@contextmanager
def opened(table: Table) -> Iterator[TableWriter]:
    """Opens a folder, which need not exist."""
    yield _ParquetFolder(table)


class _ParquetFolder:
    version: str | None = None

    def __init__(self, table: Table) -> None:
        self._files = RemoteFiles(table.uri.removeprefix("parquet://"), table.storage_options)
        self._where = f"table {table.uri!r}"

    def type_of(self, type_: pa.DataType) -> str | None:
        text = str(normalised(type_))
        return None if "duration" in text else text

    def columns(self) -> dict[str, str] | None:
        listed = sorted(str(each["name"]).rstrip("/") for each in self._files.entries(self._files.root))
        files = (f"{folder}/rows.parquet" for folder in listed if folder.rpartition("/")[2].startswith(f"{BATCH}="))
        if (newest := next((file for file in files if self._files.exists(file)), None)) is None:
            return None
        with self._files.fs.open(newest, "rb") as stream:
            schema = pq.read_schema(stream)
        return {field.name: str(normalised(field.type)) for field in schema} | {BATCH: "string"}

    def create(self, schema: pa.Schema) -> None:
        pass

    def replace(self, batch: str, schema: pa.Schema | None, rows: Iterator[pa.RecordBatch]) -> None:
        name = f"{BATCH}={_ESCAPED.sub(lambda found: f'%{ord(found[0]):02X}', batch)}"
        if len(name.encode()) > 255:
            raise BadInput(f"{self._where}: batch {batch!r} is too long for the name of a folder; give a shorter one")
        file = f"{self._files.root}/{name}/rows.parquet"
        if schema is None:
            self._files.remove(file)
            return
        own = schema.remove(schema.get_field_index(BATCH))
        with temporary_folder("part") as folder:
            with parquet_writer(folder / "rows.parquet", own) as writer:
                for each in rows:
                    writer.write_table(pa.Table.from_batches([each]).select(own.names))
            staged = f"{file.rpartition('/')[0]}/.{uuid.uuid4().hex[:8]}"  # which readers of folders leave out
            self._files.put(folder / "rows.parquet", staged)
            self._files.move(staged, file)
