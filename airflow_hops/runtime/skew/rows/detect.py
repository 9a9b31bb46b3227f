"""Row-level skew: the rows that were served, value by value against the training rows of the same identifiers.

What TFDV's feature-skew detector finds (``tensorflow_data_validation.skew``), without Beam: a hash join over Arrow
batches. Three passes: the identifiers of the serving rows, the training rows, of which those are kept that were served
too, and the serving rows, batch by batch.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from airflow_hops.contract.artifacts import BadInput
from airflow_hops.runtime.skew.rows.report import RowSkewReport


def detect_row_skew(
    training: Any,
    serving: Any,
    *,
    identifiers: Sequence[str],
    ignore: Collection[str] = (),
    float_rounding: int | None = None,
    allow_duplicate_identifiers: bool = False,
    confusion: Collection[str] = (),
    examples: int = 10,
    seed: int = 0,
) -> RowSkewReport:
    """Joins serving rows with training rows by their identifiers, and compares every feature of the pairs.

    Values are compared as ``tf.Example`` has them: floats of 32 bits, NaN equal to NaN, lists in their order. A feature
    that one side lacks counts as missing there. Identifiers are joined by a hash of 64 bits, as in TFDV.

    Memory is 8 bytes for each row of both sides, the columns of the training rows that were served too, and a batch of
    serving rows.

    Args:
        training: A source as :func:`~airflow_hops.runtime.feature_statistics.generate_statistics` takes; or a function
            of column names (None for all) that yields Arrow record batches, each time anew.
        serving: The same, of what was served.
        identifiers: Features that tell a row, together. Rows that lack one are counted, and not compared.
        ignore: Features that are not compared.
        float_rounding: Digits after the point to which floats are rounded before they are compared; None for none.
        allow_duplicate_identifiers: Whether rows are compared whose identifiers occur more than once on a side: each
            training row with each serving row, then. Otherwise they are only counted.
        confusion: Features of strings for which the values that met are counted.
        examples: How many differing pairs of each feature the report shows, at most.
        seed: Of the draw of the examples.

    Raises:
        BadInput: no identifiers; a side lacks one, or has it of another type; a source cannot be read.
    """
    names = sorted(set(identifiers))
    if isinstance(identifiers, str) or not names or not all(names):
        raise BadInput(f"identifiers is {identifiers!r}, expected a list with at least one name of a feature")
    if examples < 0:
        raise BadInput(f"examples is {examples}, expected 0 or more")
    wrong = sorted(set(confusion) & {*names, *ignore})
    if wrong:
        raise BadInput(f"confusion names {', '.join(wrong)}, which are not compared")
    from airflow_hops.runtime.skew.rows.compare import Comparison
    from airflow_hops.runtime.skew.rows.join import Identifiers, ReadAnew, Rows, join_rows

    before, after = Rows(training, "training"), Rows(serving, "serving")
    while True:
        told = Identifiers(names, float_rounding)
        try:
            join = join_rows(before, after, told, duplicates=allow_duplicate_identifiers, ignore=set(ignore))
            comparison = Comparison(told, float_rounding, {*names, *ignore}, set(confusion), examples, seed)
            return comparison.of(join, after)
        except ReadAnew:
            continue
