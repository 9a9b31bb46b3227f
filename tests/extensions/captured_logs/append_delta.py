"""Appends requests to an inference table, in the environment that has deltalake, or compacts it."""

import json
import sys

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

folder, command, *place = sys.argv[1:]
if command == "compact":
    DeltaTable(folder).optimize.compact()
    sys.exit()
rows = [
    {
        "databricks_request_id": f"r{number}",
        "timestamp_ms": 1_790_002_800_000 + number * 60_000,
        "status_code": 500 if number % 10 == 9 else 200,
        "request": json.dumps({"dataframe_records": [{"age": number}]}),
        "response": json.dumps({"predictions": [number / 2]}),
        "served_entity_id": "e1",
        **({"place": place[0]} if place else {}),
    }
    for number in map(int, command.split(","))
]
allowed = {"delta.enableDeletionVectors": "true"}  # as Databricks creates its tables
write_deltalake(
    folder, pa.Table.from_pylist(rows), mode="append", configuration=allowed, partition_by=["place"] if place else None
)
