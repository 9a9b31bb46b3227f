"""Writers of Parquet that record no minimum and maximum of floats.

PyArrow leaves NaN out of them, although NaN is the greatest number in SQL. DuckDB and Spark skip row groups by them,
and DuckDB simplifies conditions, so that ``amount > 990`` or ``isnan(amount)`` would miss the rows with NaN.
"""

from __future__ import annotations

from typing import Any


def parquet_writer(where: object, schema: object, **options: object) -> Any:
    """Opens a ``pyarrow.parquet.ParquetWriter`` with options of that class; a context manager."""
    from pyarrow.parquet import ParquetWriter  # noqa: TID251

    return ParquetWriter(where, schema, **{"write_statistics": _columns_with_bounds(schema), **options})


def write_parquet(table: Any, where: object, **options: object) -> None:
    """Writes a ``pyarrow.Table`` to a file; arguments as :func:`parquet_writer`."""
    with parquet_writer(where, table.schema, **options) as writer:
        writer.write_table(table)


def _columns_with_bounds(schema: Any) -> list[str]:
    """Returns the flat columns that are no floats; a name with a dot may also be the path of a nested column."""
    import pyarrow as pa

    kinds = {
        field.name: field.type.value_type if pa.types.is_dictionary(field.type) else field.type for field in schema
    }
    return [
        name
        for name, kind in kinds.items()
        if "." not in name and not pa.types.is_nested(kind) and not pa.types.is_floating(kind)
    ]
