"""Makes an Iceberg table and a Delta table below a folder, in the environment that reads them; one more row each time.

The rows are ``{id, at, price, name, epoch, tags}``, one an hour. With ``equality``, the Iceberg table gets an equality
delete, and with ``columns`` other columns, two of which swap their names; with ``vectors`` or ``mapping``, the Delta
table may have deletion vectors or has column mapping.
"""

import shutil
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
    at = [start + timedelta(hours=number) for number in range(first, first + count)]
    return pa.table({
        "id": pa.array(range(first, first + count), pa.int64()),
        "at": pa.array([None, *at[1:]] if first == 0 else at, pa.timestamp("us", "UTC")),
        "price": pa.array([None if n % 2 else n for n in range(count)], pa.decimal128(10, 2)),
        "name": pa.array([f"n{number}" for number in range(count)]),
        "epoch": pa.array([int(time.timestamp()) for time in at], pa.int32()),
        "tags": pa.array([["a.b"]] * count),
    })  # fmt: skip


folder, what = Path(sys.argv[1]), sys.argv[2]
catalog = SqlCatalog("lake", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/iceberg")
if what == "new":
    catalog.create_namespace("shop")
    catalog.create_table("shop.empty", schema=rows(0, 1).schema)
    table = catalog.create_table("shop.rows", schema=rows(0, 1).schema)
    for first in (0, 500):
        table.append(rows(first, 500))
        write_deltalake(folder / "delta", rows(first, 500), mode="append")
elif what == "more":
    catalog.load_table("shop.rows").append(rows(1000, 1))
    write_deltalake(folder / "delta", rows(1000, 1), mode="append")
elif what in ("vectors", "mapping"):
    shutil.rmtree(folder / "delta")
    mapping = {"delta.columnMapping.mode": "name", "delta.minReaderVersion": "2", "delta.minWriterVersion": "5"}
    configuration = {"delta.enableDeletionVectors": "true"} if what == "vectors" else mapping
    write_deltalake(folder / "delta", rows(0, 5), mode="overwrite", configuration=configuration)
elif what == "equality":
    deletes = DataFile.from_args(
        content=DataFileContent.EQUALITY_DELETES, file_path=f"file://{folder}/deletes.parquet",
        file_format=FileFormat.PARQUET, partition=Record(), record_count=1, file_size_in_bytes=1, equality_ids=[1],
    )  # fmt: skip
    table = catalog.load_table("shop.rows")
    with table.transaction() as transaction, transaction.update_snapshot().fast_append() as append:
        append.append_data_file(deletes)
elif what == "columns":
    with catalog.load_table("shop.rows").update_schema() as update:
        update.delete_column("name")
        update.add_column("when", TimestamptzType())
        update.update_column("epoch", LongType())
    for old, new in (("id", "old"), ("epoch", "id"), ("old", "epoch")):
        with catalog.load_table("shop.rows").update_schema() as update:
            update.rename_column(old, new)
elif what == "gone":
    catalog.drop_table("shop.rows")
