"""Row-level skew: served rows, compared value by value with the training rows of the same identifiers.

It finds what TFDV's feature-skew detector finds (``tensorflow_data_validation.skew``), without Beam, with a hash join
over Arrow batches in three passes: the identifiers of the serving rows; the training rows, of which those that were
also served go to files, by the stretch of serving rows that they meet; and the serving rows, batch by batch.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Any

from airflow_hops.core.contract.artifacts import BadInput
from airflow_hops.core.processes.temporary_folders import temporary_folder
from airflow_hops.ml.monitoring.skew.rows.report import RowSkewReport


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

    Values are compared as in ``tf.Example``: 32-bit floats, NaN equal to NaN, lists in order. A feature that one side
    lacks counts as missing there. Identifiers are joined by a 64-bit hash, as in TFDV.

    Memory holds some tens of bytes for each row of both sides, the training rows that 131,072 serving rows meet, and a
    batch of serving rows; the other training rows that were served lie in a temporary folder.

    Args:
        training: A source as :func:`~airflow_hops.ml.statistics.generate_statistics` takes; or a function
            of column names (None for all) that yields Arrow record batches, at each call in the same order.
        serving: The same, of what was served.
        identifiers: Features that together identify a row. Rows that lack one are counted, but not compared.
        ignore: Features that are not compared.
        float_rounding: Digits after the decimal point to which floats are rounded before the comparison; None for no
            rounding.
        allow_duplicate_identifiers: Whether to compare rows whose identifiers occur more than once on a side, each
            training row with each serving row. Otherwise they are only counted.
        confusion: String features for which pairs of values are counted.
        examples: Maximum number of differing pairs of each feature in the report.
        seed: Seed for drawing the examples.

    Raises:
        BadInput: there are no identifiers; a side lacks one, or has it with another type; a source cannot be read.
    """
    names = sorted(set(identifiers))
    if isinstance(identifiers, str) or not names or not all(names):
        raise BadInput(f"identifiers is {identifiers!r}, expected a list with at least one name of a feature")
    if examples < 0:
        raise BadInput(f"examples is {examples}, expected 0 or more")
    wrong = sorted(set(confusion) & {*names, *ignore})
    if wrong:
        raise BadInput(f"confusion names {', '.join(wrong)}, which are not compared")
    from airflow_hops.ml.monitoring.skew.rows.compare import Comparison
    from airflow_hops.ml.monitoring.skew.rows.join import Identifiers, ReadAnew, Rows, join_rows

    before, after = Rows(training, "training"), Rows(serving, "serving")
    while True:
        report = Identifiers(names, float_rounding)
        left_out = {*names, *ignore}
        with suppress(ReadAnew), temporary_folder("joined") as folder:
            join = join_rows(before, after, report, folder, duplicates=allow_duplicate_identifiers, ignore=left_out)
            comparison = Comparison(report, float_rounding, left_out, set(confusion), examples, seed)
            return comparison.of(join, after)
