"""Rules that rows of a segment must keep: label, weight and features are finite, and values are as the schema says.

A segment whose rows break one fails alone: neither the encoding nor the pooled model learns from these rows.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_hops.core.errors import BadInput
from airflow_hops.extensions.fleet.ml.columns import Columns, floats, served_floats

_SHOWN = 3


def check_rows(rows: pa.Table, columns: Columns) -> None:
    """Raises BadInput if rows of a segment break a rule."""
    reasons = [f"{reason} in {len(broken):,} of {len(rows):,} rows" for broken, reason in _broken(rows, columns)]
    if reasons:
        more = f"; and {len(reasons) - _SHOWN} more" if len(reasons) > _SHOWN else ""
        raise BadInput("; ".join(reasons[:_SHOWN]) + more)
    if columns.weight is not None and not floats(rows[columns.weight]).any():
        raise BadInput(f"column {columns.weight!r}, the weight, is 0 in all {len(rows):,} rows")


def sound_rows(rows: pa.Table, columns: Columns) -> pa.Table:
    """Returns the rows that break no rule, and have a weight."""
    keeps = np.ones(len(rows), bool) if columns.weight is None else floats(rows[columns.weight]) != 0
    for numbers, _ in _broken(rows, columns):
        keeps[numbers] = False
    return rows.filter(pa.array(keeps))


def _broken(rows: pa.Table, columns: Columns) -> list[tuple[np.ndarray, str]]:
    """Returns which rows break a rule, and what the first of them has, for each broken rule."""
    broken = []
    labels = "a number" if not columns.classes else f"the number of a class, 0 to {columns.classes - 1}"
    for name, least, expected in ((columns.label, -np.inf, labels), (columns.weight, 0.0, "0 or more")):
        if name is not None:
            values = floats(rows[name])
            usable = np.isfinite(values) & (values >= least)
            if columns.classes and name == columns.label:
                usable = np.isin(values, np.arange(columns.classes))
            if len(numbers := np.flatnonzero(~usable)):
                broken.append((numbers, f"column {name!r} is {values[numbers[0]]}, expected {expected},"))
    for name in columns.features:
        if columns.types[name] != "string" and len(numbers := np.flatnonzero(np.isinf(served_floats(rows[name])))):
            broken.append((numbers, f"column {name!r} is infinite, expected a finite number, or null,"))
    if columns.schema and len(rows):
        rules = _rules(columns.schema, tuple(rows.column_names))
        (batch,) = rows.combine_chunks().to_batches()
        broken += [(each.rows, each.reasons[0].as_py()) for each in rules.check(batch)]
    return broken


@lru_cache(8)
def _rules(schema: str, names: tuple[str, ...]) -> Any:
    """Returns the rules of single rows; shares of a schema are those of all segments together."""
    from airflow_hops.ml.schema import TRAINING
    from airflow_hops.ml.schema.anomalies import known_environment
    from airflow_hops.ml.schema_files import parse_schema
    from airflow_hops.ml.validation.row_rules import RowRules

    parsed = parse_schema(schema, "the schema")
    features = [feature for feature in parsed.feature if feature.name in names]
    del parsed.feature[:]
    parsed.feature.extend(features)
    return RowRules(parsed, known_environment(parsed, TRAINING), names)
