"""Results of comparing single rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class RowMatches:
    """Counts of the join of training and serving rows, with the fields of TFDV's ``MatchStats``.

    Attributes:
        base_with_id_count: Training rows that have all identifiers.
        test_with_id_count: Serving rows that have all identifiers.
        identifiers_count: Distinct identifiers of both sides together.
        ids_missing_in_base_count: Identifiers without a training row.
        ids_missing_in_test_count: Identifiers without a serving row.
        matching_pairs_count: Pairs of a training and a serving row with the same identifier.
        duplicate_id_count: Identifiers with more than one row on a side.
        base_missing_id_count: Training rows that lack an identifier.
        test_missing_id_count: Serving rows that lack an identifier.
    """

    base_with_id_count: int
    test_with_id_count: int
    identifiers_count: int
    ids_missing_in_base_count: int
    ids_missing_in_test_count: int
    matching_pairs_count: int
    duplicate_id_count: int
    base_missing_id_count: int
    test_missing_id_count: int


@dataclass(frozen=True)
class FeatureRowSkew:
    """Differences in a feature between rows of the same identifier; extends the fields of TFDV's ``FeatureSkew``.

    Attributes:
        base_count: Pairs in which the training row has a value.
        test_count: Pairs in which the serving row has a value.
        match_count: Pairs with equal values, or with none on both sides.
        base_only: Pairs in which only the training row has a value.
        test_only: Pairs in which only the serving row has a value.
        mismatch_count: Pairs with different values.
        types: Types in training and in serving ("INT", "FLOAT", "BYTES"; None without values). If they differ, no
            values are equal.
        examples: Pairs that differ, drawn evenly: ``identifier`` (by name), ``training``, ``serving``.
    """

    base_count: int = 0
    test_count: int = 0
    match_count: int = 0
    base_only: int = 0
    test_only: int = 0
    mismatch_count: int = 0
    types: tuple[str | None, str | None] = (None, None)
    examples: list[dict[str, Any]] = field(default_factory=list)

    @property
    def diff_count(self) -> int:
        """Pairs that differ: in value, or in whether there is one."""
        return self.base_only + self.test_only + self.mismatch_count


@dataclass(frozen=True)
class RowSkewReport:
    """The result of comparing serving rows with the training rows of the same identifiers.

    Attributes:
        identifiers: Names of the features that the rows were joined by.
        pairs: Compared pairs; those of duplicate identifiers only if allowed.
        skewed_pairs: Pairs that differ in at least one feature.
        features: All compared features, most skewed first.

    Example:
        >>> import pyarrow as pa
        >>> from airflow_hops.extensions.row_skew import detect_row_skew
        >>> trained = pa.table({"id": [1, 2], "km": [733.0, 229.0]})
        >>> report = detect_row_skew(trained, pa.table({"id": [2, 1], "km": [229.0, 737.0]}), identifiers=["id"])
        >>> report.pairs, report.skewed_pairs
        (2, 1)
    """

    identifiers: tuple[str, ...]
    matches: RowMatches
    pairs: int
    skewed_pairs: int
    features: Mapping[str, FeatureRowSkew]

    @property
    def skewed(self) -> tuple[str, ...]:
        """Names of the features that differ in at least one pair, most skewed first."""
        return tuple(name for name, skew in self.features.items() if skew.diff_count)

    def to_dict(self) -> dict[str, Any]:
        """Returns the JSON value."""
        features = {name: {**asdict(skew), "diff_count": skew.diff_count} for name, skew in self.features.items()}
        return {**asdict(self), "skewed": list(self.skewed), "features": features}

    def __str__(self) -> str:
        lines = [
            f"{self.pairs} pairs of rows joined by {', '.join(self.identifiers)}; {self.skewed_pairs} differ",
            f"{'feature':30}{'differ':>10}{'value':>10}{'training only':>15}{'serving only':>14}",
        ]
        lines += [
            f"{name:30}{s.diff_count:10}{s.mismatch_count:10}{s.base_only:15}{s.test_only:14}"
            for name, s in self.features.items()
            if s.diff_count
        ]
        return "\n".join(lines)
