"""A module beside the DAG file, for what functions that make options may import."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def split_at(batch: Any, feature: str, threshold: float) -> Iterator[tuple[str, Any]]:
    """Two slices of a record batch: the rows with a feature below a threshold, and the others."""
    import pyarrow as pa
    import pyarrow.compute as pc

    values = batch.column(batch.schema.get_field_index(feature)).flatten()
    below = pc.less(values, threshold)
    table = pa.Table.from_batches([batch])
    for name, rows in (("near", below), ("far", pc.invert(below))):
        for part in table.filter(rows).to_batches():
            yield name, part
