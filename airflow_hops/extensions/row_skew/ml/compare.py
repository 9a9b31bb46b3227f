"""Compares served rows value by value with the training rows of the same identifiers (row-level skew).

It finds what TFDV's feature-skew detector finds (``tensorflow_data_validation.skew``), without Beam, by a hash join
over Arrow batches in three passes: the identifiers of the serving rows; the training rows, of which those that were
also served are written to files, by the stretch of serving rows that they match; and the serving rows, batch by batch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_hops.core.errors import BadInput, InvalidArgument
from airflow_hops.core.processes.temporary_folders import temporary_folder
from airflow_hops.extensions.row_skew.ml.join import Identifiers, Join, ReadAnew, Rows, join_rows, pairs_of
from airflow_hops.extensions.row_skew.ml.report import FeatureRowSkew, RowSkewReport
from airflow_hops.extensions.row_skew.ml.values import RowOutcome, compare, kind_of, shown


def detect_row_skew(
    training: object,
    serving: object,
    *,
    identifiers: Sequence[str],
    ignore: Collection[str] = (),
    float_rounding: int | None = None,
    allow_duplicate_identifiers: bool = False,
    examples: int = 10,
    seed: int = 0,
) -> RowSkewReport:
    """Joins serving rows with training rows by their identifiers, and compares every feature of the pairs.

    Values are compared as in ``tf.Example``: 32-bit floats, NaN equal to NaN, lists in order. A feature that one side
    lacks counts as missing there. Identifiers are joined by a 64-bit hash, as in TFDV.

    Memory holds some tens of bytes for each row of both sides, the training rows that 131,072 serving rows match, and a
    batch of serving rows; the other training rows that were served are in a temporary folder.

    Args:
        training: A source as :func:`~airflow_hops.ml.statistics.generate_statistics` takes; or a function of column
            names (None for all) that yields Arrow record batches, in the same order at each call.
        serving: The same for the served rows.
        identifiers: Features that together identify a row. Rows that lack one are counted, but not compared.
        ignore: Features that are not compared.
        float_rounding: Digits after the decimal point to which floats are rounded before the comparison; None for no
            rounding.
        allow_duplicate_identifiers: Whether to compare rows whose identifiers occur more than once on a side, each
            training row with each serving row. Otherwise they are only counted.
        examples: Maximum number of differing pairs of each feature in the report.
        seed: Seed for drawing the examples.

    Raises:
        BadInput: there are no identifiers; a side lacks one, or has it with another type; a source cannot be read.
    """
    names = sorted(set(identifiers))
    if isinstance(identifiers, str) or not names or not all(names):
        raise InvalidArgument("identifiers", identifiers, ", expected a list with at least one name of a feature")
    if examples < 0:
        raise InvalidArgument("examples", examples, ", expected 0 or more")
    base, new = Rows(training, "training"), Rows(serving, "serving")
    left_out = {*names, *ignore}
    while True:
        hashed = Identifiers(names, float_rounding)
        with suppress(ReadAnew), temporary_folder("joined") as folder:
            join = join_rows(base, new, hashed, folder, duplicates=allow_duplicate_identifiers, ignore=left_out)
            comparison = _Comparison(hashed, float_rounding, left_out, examples, seed)
            return comparison.of(join, new)


@dataclass
class _Counted:
    outcomes: Any = field(default_factory=lambda: np.zeros(len(RowOutcome), np.int64))
    types: list[str | None] = field(default_factory=lambda: [None, None])
    examples: list[tuple[float, dict[str, Any]]] = field(default_factory=list)

    def result(self) -> FeatureRowSkew:
        counts = dict(zip(RowOutcome, self.outcomes.tolist(), strict=True))
        valued = counts[RowOutcome.MATCH] + counts[RowOutcome.MISMATCH]
        return FeatureRowSkew(
            base_count=valued + counts[RowOutcome.BASE_ONLY],
            test_count=valued + counts[RowOutcome.TEST_ONLY],
            match_count=counts[RowOutcome.MATCH] + counts[RowOutcome.BOTH_MISSING],
            base_only=counts[RowOutcome.BASE_ONLY],
            test_only=counts[RowOutcome.TEST_ONLY],
            mismatch_count=counts[RowOutcome.MISMATCH],
            types=(self.types[0], self.types[1]),
            examples=[example for _, example in self.examples],
        )


class _Comparison:
    """Compares serving rows with the training rows of a join."""

    def __init__(
        self,
        identifiers: Identifiers,
        rounding: int | None,
        ignore: set[str],
        examples: int,
        seed: int,
    ) -> None:
        self._identifiers, self._rounding, self._ignore = identifiers, rounding, ignore
        self._examples = examples
        self._random = np.random.default_rng(seed)
        self._features: dict[str, _Counted] = defaultdict(_Counted)
        self._pairs = self._skewed_pairs = 0

    def of(self, join: Join, serving: Rows) -> RowSkewReport:
        """Compares all serving rows; fails if they came in another order than before."""
        seen = 0
        for batch in serving.batches():
            names = [n for n in dict.fromkeys([*join.schema.names, *batch.schema.names]) if n not in self._ignore]
            keys, whole = self._identifiers.hash(batch, serving.side)
            for first, last, (known, rows) in join.stretches(seen, seen + len(keys)):
                places = first - seen + np.flatnonzero(whole[first - seen : last - seen])
                for training_rows, result in pairs_of(known, keys[places]):
                    self._add(names, rows, training_rows, batch, places[result])
            seen += len(keys)
        if self._pairs != join.pairs:
            raise BadInput(
                f"{serving.side}: {join.pairs} pairs were to be compared, but {self._pairs} were found when the rows "
                "were read again; they must come in the same order each time"
            )
        features = {name: counted.result() for name, counted in self._features.items()}
        return RowSkewReport(
            identifiers=self._identifiers.names,
            matches=join.matches,
            pairs=self._pairs,
            skewed_pairs=self._skewed_pairs,
            features=dict(sorted(features.items(), key=lambda item: (-item[1].diff_count, item[0]))),
        )

    def _add(
        self,
        names: list[str],
        training: pa.Table,
        training_rows: np.ndarray,
        serving: pa.RecordBatch,
        serving_rows: np.ndarray,
    ) -> None:
        skewed = np.zeros(len(training_rows), bool)
        for name in names:
            base, test = _take(training, name, training_rows), _take(serving, name, serving_rows)
            counted = self._features[name]
            outcome = compare(base, test, self._rounding)
            counted.outcomes += np.bincount(outcome, minlength=len(RowOutcome))
            counted.types = [known or kind_of(c.type) for known, c in zip(counted.types, (base, test), strict=True)]
            differs = outcome > RowOutcome.MATCH
            skewed |= differs
            self._draw(counted, np.flatnonzero(differs), base, test, serving, serving_rows)
        self._pairs += len(skewed)
        self._skewed_pairs += int(skewed.sum())

    def _draw(
        self,
        counted: _Counted,
        differ: np.ndarray,
        base: pa.Array,
        test: pa.Array,
        serving: pa.RecordBatch,
        serving_rows: np.ndarray,
    ) -> None:
        """Keeps the pairs with the lowest random numbers, a uniform sample of all that differ."""
        numbers = self._random.random(len(differ))
        # Numbers above the highest kept one are not among the lowest.
        limit = counted.examples[-1][0] if len(counted.examples) == self._examples > 0 else 1.0
        lower = np.flatnonzero(numbers < limit)
        for place in lower[np.argsort(numbers[lower])][: self._examples]:
            pair = int(differ[place])
            row = int(serving_rows[pair])
            identifier = {
                name: shown(serving.column(serving.schema.get_field_index(name)), row)
                for name in self._identifiers.names
            }
            example = {"identifier": identifier, "training": shown(base, pair), "serving": shown(test, pair)}
            counted.examples.append((float(numbers[place]), example))
        counted.examples.sort(key=lambda entry: entry[0])
        del counted.examples[self._examples :]


def _take(rows: pa.RecordBatch | pa.Table, name: str, places: np.ndarray) -> pa.Array:
    index = rows.schema.get_field_index(name)
    if index < 0:
        return pa.nulls(len(places))
    column = rows.column(index)
    if isinstance(column, pa.ChunkedArray):
        column = column.chunk(0)
    return column.take(pa.array(places))
