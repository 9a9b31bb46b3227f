"""Rules that rows of a segment must keep: a label and a weight are numbers, and values are as the schema says.

A segment whose rows break one fails alone: neither the encoding nor the pooled model learns from these rows.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_hops.core.errors import BadInput
from airflow_hops.extensions.fleet.ml.columns import Columns, float64_values

_SHOWN = 3


def check_rows(rows: pa.Table, columns: Columns, min_rows: int) -> None:
    """Raises BadInput if rows of a segment break a rule; shares of missing values count from ``min_rows`` rows on."""
    reasons = [f"{reason} in {len(broken):,} of {len(rows):,} rows" for broken, reason in _broken(rows, columns)]
    if len(rows) >= min_rows:
        reasons += _lacking(rows, columns)
    if reasons:
        more = f"; and {len(reasons) - _SHOWN} more" if len(reasons) > _SHOWN else ""
        raise BadInput("; ".join(reasons[:_SHOWN]) + more)
    if columns.weight is not None and not float64_values(rows[columns.weight]).any():
        raise BadInput(f"column {columns.weight!r}, the weight, is 0 in all {len(rows):,} rows")


def sound_rows(rows: pa.Table, columns: Columns) -> pa.Table:
    """Returns the rows that break no rule."""
    if not (broken := _broken(rows, columns)):
        return rows
    keeps = np.ones(len(rows), bool)
    for numbers, _ in broken:
        keeps[numbers] = False
    return rows.filter(pa.array(keeps))


def _broken(rows: pa.Table, columns: Columns) -> list[tuple[np.ndarray, str]]:
    """Returns which rows break a rule, and what the first of them has, for each broken rule."""
    broken = []
    for name, least, expected in ((columns.label, -np.inf, "a number"), (columns.weight, 0.0, "0 or more")):
        if name is not None:
            values = float64_values(rows[name])
            if len(numbers := np.flatnonzero(~(np.isfinite(values) & (values >= least)))):
                broken.append((numbers, f"column {name!r} is {values[numbers[0]]}, expected {expected},"))
    if columns.schema and len(rows):
        rules, _ = _rules(columns.schema, tuple(rows.column_names))
        (batch,) = rows.combine_chunks().to_batches()
        broken += [(each.rows, each.reasons[0].as_py()) for each in rules.check(batch)]
    return broken


def _lacking(rows: pa.Table, columns: Columns) -> list[str]:
    """Returns columns that have a value in fewer rows than the schema says."""
    reasons = []
    for name, fraction, count in _rules(columns.schema, tuple(rows.column_names))[1] if columns.schema else ():
        present = len(rows) - rows[name].null_count
        if present < max(fraction * len(rows), count):
            expected = f"a share of {fraction:g}" if fraction else f"{count:,}"
            reasons.append(f"{name}: {present:,} of {len(rows):,} rows have a value, expected {expected} at least")
    return reasons


@lru_cache(8)
def _rules(schema: str, names: tuple[str, ...]) -> tuple[Any, list[tuple[str, float, int]]]:
    """Returns the rules of single rows, and the least share and number of rows with a value by column."""
    from airflow_hops.ml.schema import TRAINING
    from airflow_hops.ml.schema.validation import known_environment
    from airflow_hops.ml.schema_files import parse_schema
    from airflow_hops.ml.validation.row_rules import RowRules

    parsed = parse_schema(schema, "the schema")
    features = [feature for feature in parsed.feature if feature.name in names]
    del parsed.feature[:]
    parsed.feature.extend(features)
    rules = RowRules(parsed, known_environment(parsed, TRAINING), names)
    shares = [(each.name, each.presence.min_fraction, each.presence.min_count) for each in features]
    return rules, [share for share in shares if share[1] < 1 and (share[1] or share[2])]
