"""Counts, over pairs of rows, in which features they differ."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_hops.core.contract.artifacts import BadInput
from airflow_hops.ml.monitoring.skew.rows.join import Identifiers, Join, Rows
from airflow_hops.ml.monitoring.skew.rows.report import FeatureRowSkew, RowSkewReport
from airflow_hops.ml.monitoring.skew.rows.values import Outcome, compare, shown, values_of

MISSING = b"__MISSING_VALUE__"
"""Name of a missing value in TFDV's confusion counts."""


@dataclass
class _Counted:
    """The counts of a feature."""

    outcomes: Any = field(default_factory=lambda: np.zeros(len(Outcome), np.int64))
    types: list[str | None] = field(default_factory=lambda: [None, None])
    examples: list[tuple[float, dict[str, Any]]] = field(default_factory=list)
    met: Counter[tuple[bytes, bytes]] = field(default_factory=Counter)

    def result(self) -> FeatureRowSkew:
        counts = dict(zip(Outcome, self.outcomes.tolist(), strict=True))
        valued = counts[Outcome.MATCH] + counts[Outcome.MISMATCH]
        return FeatureRowSkew(
            base_count=valued + counts[Outcome.BASE_ONLY],
            test_count=valued + counts[Outcome.TEST_ONLY],
            match_count=counts[Outcome.MATCH] + counts[Outcome.BOTH_MISSING],
            base_only=counts[Outcome.BASE_ONLY],
            test_only=counts[Outcome.TEST_ONLY],
            mismatch_count=counts[Outcome.MISMATCH],
            types=(self.types[0], self.types[1]),
            examples=[example for _, example in self.examples],
        )


class Comparison:
    """Compares serving rows with the training rows of a join.

    Args:
        identifiers: What the rows are joined by.
        rounding: Digits to which floats are rounded; None for none.
        ignore: Columns that are not compared.
        confusion: Features for which the values that met are counted.
        examples: Differing pairs of a feature that are shown, at most.
        seed: Of their draw.
    """

    def __init__(
        self,
        identifiers: Identifiers,
        rounding: int | None,
        ignore: set[str],
        confusion: set[str],
        examples: int,
        seed: int,
    ) -> None:
        self._identifiers, self._rounding, self._ignore = identifiers, rounding, ignore
        self._confusion, self._examples = confusion, examples
        self._random = np.random.default_rng(seed)
        self._features: dict[str, _Counted] = defaultdict(_Counted)
        self._pairs = self._skewed_pairs = 0

    def of(self, join: Join, serving: Rows) -> RowSkewReport:
        """Compares all serving rows.

        Raises:
            BadInput: a feature of ``confusion`` is not there, is no string, or has several values in a row; or the
                serving rows have come in another order than before.
        """
        seen = 0
        for batch in serving.batches():
            names = [n for n in dict.fromkeys([*join.schema.names, *batch.schema.names]) if n not in self._ignore]
            keys, whole = self._identifiers.hash(batch, serving.side)
            for first, last, training in join.stretches(seen, seen + len(keys)):
                places = first - seen + np.flatnonzero(whole[first - seen : last - seen])
                for training_rows, result in training.pairs(keys[places]):
                    self._add(names, training.rows, training_rows, batch, places[result])
            seen += len(keys)
        if self._pairs != join.pairs:
            raise BadInput(
                f"{serving.side}: {join.pairs} pairs were to be compared, but {self._pairs} were found when the rows "
                "were read again; they must come in the same order each time"
            )
        absent = self._confusion - self._features.keys()
        if absent and self._pairs:
            raise BadInput(f"confusion names {', '.join(sorted(absent))}; there are {', '.join(self._features)}")
        features = {name: counted.result() for name, counted in self._features.items()}
        return RowSkewReport(
            identifiers=self._identifiers.names,
            matches=join.matches,
            pairs=self._pairs,
            skewed_pairs=self._skewed_pairs,
            features=dict(sorted(features.items(), key=lambda item: (-item[1].diff_count, item[0]))),
            confusion={name: _most_frequent(self._features[name].met) for name in sorted(self._confusion)},
        )

    def _add(self, names: list[str], training: Any, training_rows: Any, serving: Any, serving_rows: Any) -> None:
        skewed = np.zeros(len(training_rows), bool)
        for name in names:
            base, test = _take(training, name, training_rows), _take(serving, name, serving_rows)
            counted = self._features[name]
            outcome = compare(base, test, self._rounding)
            counted.outcomes += np.bincount(outcome, minlength=len(Outcome))
            counted.types = [known or values_of(c).kind for known, c in zip(counted.types, (base, test), strict=True)]
            differs = outcome > Outcome.MATCH
            skewed |= differs
            self._draw(counted, np.flatnonzero(differs), base, test, serving, serving_rows)
            if name in self._confusion:
                counted.met.update(_met(name, base, test))
        self._pairs += len(skewed)
        self._skewed_pairs += int(skewed.sum())

    def _draw(self, counted: _Counted, differ: Any, base: Any, test: Any, serving: Any, serving_rows: Any) -> None:
        """Keeps the pairs that drew the lowest numbers: an even sample of all that differ."""
        numbers = self._random.random(len(differ))
        # What is not below the highest that is kept is not among the lowest.
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


def _take(rows: Any, name: str, places: Any) -> Any:
    index = rows.schema.get_field_index(name)
    if index < 0:
        return pa.nulls(len(places))
    column = rows.column(index)
    if isinstance(column, pa.ChunkedArray):
        column = column.chunk(0)
    return column.take(pa.array(places))


def _met(name: str, base: Any, test: Any) -> dict[tuple[bytes, bytes], int]:
    """How often a training value met a serving value."""
    table = pa.table({"base": _single(name, base), "test": _single(name, test), "pairs": np.ones(len(base), np.int64)})
    counted = table.group_by(["base", "test"]).aggregate([("pairs", "sum")])
    return {(row["base"], row["test"]): row["pairs_sum"] for row in counted.to_pylist()}


def _single(name: str, column: Any) -> Any:
    values = values_of(column)
    if values.kind not in (None, "BYTES") or values.lengths is not None:
        result = values.kind if values.lengths is None else "several values in a row"
        raise BadInput(f"confusion names {name!r}, which is {result}; expected strings, one in a row")
    return pc.fill_null(values.flat.cast(pa.large_binary()), MISSING)


def _most_frequent(met: Counter[tuple[bytes, bytes]]) -> list[list[Any]]:
    ordered = sorted(met.items(), key=lambda item: (-item[1], item[0]))
    return [[*(value.decode(errors="backslashreplace") for value in pair), count] for pair, count in ordered]
