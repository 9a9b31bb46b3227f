"""Rows of a segment as its models take them, their fingerprint, and a sample of them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from airflow_hops.core.errors import BadInput
from airflow_hops.extensions.fleet.core.linear import Encoding
from airflow_hops.extensions.fleet.core.packs import shown
from airflow_hops.extensions.fleet.ml.rows import Columns, float64_values, served_floats


@dataclass(frozen=True)
class TrainingRows:
    """Rows as a model takes them.

    Attributes:
        matrix: Encoded features, float64 ``[rows, width]``.
        labels: Class numbers or values, float64 ``[rows]``.
        weights: Weights, float64 ``[rows]``.
        folds: Number of the fifth of the rows that each is in, ``[rows]``.
    """

    matrix: np.ndarray
    labels: np.ndarray
    weights: np.ndarray
    folds: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)

    def where(self, chosen: np.ndarray) -> TrainingRows:
        """Returns some of the rows, by a mask or their numbers."""
        return TrainingRows(self.matrix[chosen], self.labels[chosen], self.weights[chosen], self.folds[chosen])


FOLDS = 5


def training_rows(table: pa.Table, columns: Columns, encoding: Encoding, segment: str) -> TrainingRows:
    """Encodes rows of a segment. Raises BadInput if a label or a weight is missing or not finite."""
    labels = _finite(table, columns.label, segment)
    weights = np.ones(len(table)) if columns.weight is None else _finite(table, columns.weight, segment)
    features = {
        name: table[name].combine_chunks() if columns.types[name] == "string" else served_floats(table[name])
        for name in columns.features
    }
    return TrainingRows(encoding.encode(features), labels, weights, np.arange(len(table)) % FOLDS)


def _finite(table: pa.Table, name: str, segment: str) -> np.ndarray:
    values = float64_values(table[name])
    if not (finite := np.isfinite(values)).all():
        row = int(finite.argmin())
        raise BadInput(f"column {name!r} of segment {shown(segment)} is {values[row]} in row {row}; expected a number")
    return values


def fingerprint_of(options: str, tables: Sequence[pa.Table | None]) -> str:
    """Returns the fingerprint of a segment's rows, and of the options that its model depends on."""
    digest = hashlib.sha256(options.encode())
    for table in tables:
        digest.update(b"\0" if table is None else f"{len(table)} rows".encode())
        for column in table.columns if table is not None else ():
            values = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
            values = values if isinstance(values, pa.Array) else pa.concat_arrays(values.chunks)
            if values.null_count:  # what lies below a null may differ
                digest.update(np.packbits(values.is_null().to_numpy(zero_copy_only=False)).tobytes())
                values = values.fill_null("" if pa.types.is_string(values.type) else 0)
            batch = pa.RecordBatch.from_arrays([values], ["values"])
            digest.update(memoryview(batch.serialize()))
    return digest.hexdigest()


def sampled(rows: int, segment: str, share: float) -> np.ndarray:
    """Returns which of a segment's rows are in a uniform sample, the same whatever other segments there are."""
    seed = int.from_bytes(hashlib.sha256(segment.encode()).digest()[:8], "big")
    chosen: np.ndarray = np.random.default_rng(seed).random(rows) < share
    return chosen
