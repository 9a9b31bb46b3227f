"""Facts about a part's rows without its segments: numbers of rows, and values of features for the encoding."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_hops.core.errors import BadInput
from airflow_hops.extensions.fleet.core.linear import CategoryEncoding, Encoding, NumberEncoding
from airflow_hops.extensions.fleet.ml.columns import Columns, served_floats

_CATEGORIES = 50
"""Values of a category with a column of the matrix, the most frequent ones."""
_COUNTED = 1000
"""Values of a category that the survey of a part has."""


@dataclass
class Survey:
    """Survey of rows; its fields are JSON.

    Attributes:
        types: Types of the features and of the key, as in :class:`~airflow_hops.extensions.fleet.ml.columns.Columns`.
        read: Rows by split.
        rejected: Rows that are in no split, by reason.
        nulls: Rows without a key.
        numbers: Count, mean and sum of squared differences from it, by numeric feature of training rows.
        missing: Their missing values by feature.
        values: Their numbers by value, by feature of strings.
    """

    types: dict[str, str] = field(default_factory=dict)
    read: dict[str, int] = field(default_factory=dict)
    rejected: dict[str, int] = field(default_factory=dict)
    nulls: int = 0
    numbers: dict[str, tuple[int, float, float]] = field(default_factory=dict)
    missing: dict[str, int] = field(default_factory=dict)
    values: dict[str, dict[str, int]] = field(default_factory=dict)

    def add(self, other: Survey, file: str) -> None:
        """Adds the survey of the rows of a file. Raises BadInput if its columns are not those of the others."""
        self.types = self.types or dict(other.types)
        if other.types and (differing := sorted(self.types.keys() ^ other.types.keys())):
            raise BadInput(f"{file}: column {differing[0]!r} is not in all files; expected the same columns in each")
        for name, kind in other.types.items():
            if kind != self.types[name]:
                if "string" in (kind, self.types[name]):
                    raise BadInput(
                        f"{file}: column {name!r} is {kind}, and {self.types[name]} in other files; expected one type, "
                        "which a source's schema can name"
                    )
                self.types[name] = "float"
        self.nulls += other.nulls
        for mine, theirs in ((self.read, other.read), (self.rejected, other.rejected), (self.missing, other.missing)):
            _count(mine, theirs)
        for name, (n, mean, squares) in other.numbers.items():
            m, own, own_squares = self.numbers.get(name, (0, 0.0, 0.0))
            if total := n + m:
                joined = own_squares + squares + (mean - own) ** 2 * n * m / total
                self.numbers[name] = (total, own + (mean - own) * n / total, joined)
        for name, counts in other.values.items():
            _count(self.values.setdefault(name, {}), counts)

    def add_training_rows(self, table: pa.Table, columns: Columns, file: str) -> None:
        """Adds features of training rows. Raises BadInput if a number is infinite."""
        for name in columns.features:
            column = table[name]
            if columns.types[name] == "string":
                counts = {each["values"]: each["counts"] for each in pc.value_counts(column.drop_null()).to_pylist()}
                self.values[name] = dict(sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:_COUNTED])
                continue
            values = served_floats(column)
            if np.isinf(values).any():
                raise BadInput(f"column {name!r} is infinite in a row of {file}; expected finite numbers, or null")
            present = values[~np.isnan(values)]
            self.missing[name] = len(values) - len(present)
            if len(present):
                mean = float(present.mean())
                self.numbers[name] = (len(present), mean, float(np.square(present - mean).sum()))

    def encoding(self, columns: Columns) -> Encoding:
        """Returns the matrix of the features."""
        numbers, categories = [], []
        for name in columns.features:
            if columns.types[name] == "string":
                counts = sorted(self.values.get(name, {}).items(), key=lambda item: (-item[1], item[0]))
                categories.append(CategoryEncoding(name, tuple(value for value, _ in counts[:_CATEGORIES])))
            else:
                rows, mean, squares = self.numbers.get(name, (0, 0.0, 0.0))
                scale = float(np.sqrt(squares / rows)) if rows else 0.0
                is_constant = not np.isfinite(scale) or scale <= 1e-12 * max(1.0, abs(mean))
                # Rounded, since sums depend on the order of rows in their last bits.
                mean, scale = (float(f"{value:.9g}") for value in (mean, 1.0 if is_constant else scale))
                numbers.append(NumberEncoding(name, mean, scale, self.missing.get(name, 0) > 0))
        return Encoding(tuple(numbers), tuple(categories))


def _count(counts: dict[str, int], more: dict[str, int]) -> None:
    for name, count in more.items():
        counts[name] = counts.get(name, 0) + count
