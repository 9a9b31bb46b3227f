"""Makes the tables of a lake below a folder, in the environment that reads them, and with ``more`` changes them.

``shop.rows`` of Iceberg and ``delta`` have 1,000 rows, one an hour, and one more later. Others are empty, have an
equality delete, deletion vectors or column mapping; ``shop.columns`` later has other columns, two with swapped names.
"""

import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
from deltalake import write_deltalake
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.typedef import Record
from pyiceberg.types import LongType, TimestamptzType


def rows(first: int, count: int) -> pa.Table:
    start = datetime(2013, 1, 1, tzinfo=UTC)
    times = [start + timedelta(hours=number) for number in range(first, first + count)]
    return pa.table({
        "id": pa.array(range(first, first + count), pa.int64()),
        "at": pa.array([None, *times[1:]] if first == 0 else times, pa.timestamp("us", "UTC")),
        "price": pa.array([None if n % 2 else n for n in range(count)], pa.decimal128(10, 2)),
        "name": pa.array([f"n{number}" for number in range(count)]),
        "epoch": pa.array([int(time.timestamp()) for time in times], pa.int32()),
        "tags": pa.array([["a.b"]] * count),
    })  # fmt: skip


folder = Path(sys.argv[1])
catalog = SqlCatalog("lake", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/iceberg")
if sys.argv[2:] == ["more"]:
    catalog.load_table("shop.rows").append(rows(1000, 1))
    write_deltalake(folder / "delta", rows(1000, 1), mode="append")
    with catalog.load_table("shop.columns").update_schema() as update:
        update.delete_column("name")
        update.add_column("when", TimestamptzType())
        update.update_column("epoch", LongType())
    for old, new in (("id", "old"), ("epoch", "id"), ("old", "epoch")):
        with catalog.load_table("shop.columns").update_schema() as update:
            update.rename_column(old, new)
    sys.exit()

catalog.create_namespace("shop")
tables = {
    name: catalog.create_table(f"shop.{name}", rows(0, 1).schema) for name in ("rows", "columns", "none", "deleted")
}
for first in (0, 500):
    tables["rows"].append(rows(first, 500))
    write_deltalake(folder / "delta", rows(first, 500), mode="append")
tables["columns"].append(rows(0, 1000))
mapping = {"delta.columnMapping.mode": "name", "delta.minReaderVersion": "2", "delta.minWriterVersion": "5"}
write_deltalake(folder / "vectors", rows(0, 5), configuration={"delta.enableDeletionVectors": "true"})
write_deltalake(folder / "mapping", rows(0, 5), configuration=mapping)
tables["deleted"].append(rows(0, 5))
deletes = DataFile.from_args(
    content=DataFileContent.EQUALITY_DELETES, file_path=f"file://{folder}/deletes.parquet",
    file_format=FileFormat.PARQUET, partition=Record(), record_count=1, file_size_in_bytes=1, equality_ids=[1],
)  # fmt: skip
with tables["deleted"].transaction() as transaction, transaction.update_snapshot().fast_append() as append:
    append.append_data_file(deletes)
