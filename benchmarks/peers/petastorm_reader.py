"""The peer of the reader: Petastorm's ``make_batch_reader`` on the same file, in an environment of its own.

``python -m benchmarks.peers.petastorm_reader petastorm <folder> <pool> <how>``, for
:mod:`benchmarks.measurement.timing`.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from benchmarks.measurement.reader_ways import BATCH_ROWS, LABEL, NUMBERS, TEXTS, two_passes
from benchmarks.measurement.worker import Work, perform


def petastorm(folder: str, pool: str, how: str) -> Work:
    """Row groups in a random order, in batches.

    Args:
        folder: The tables.
        pool: ``thread``, ``process`` or ``dummy``.
        how: ``unbatch``: rows one by one, shuffled in a buffer, and batched, as its documentation has it. ``rebatch``:
            row groups cut to batches, whose rows are not shuffled.
    """
    import tensorflow as tf
    from petastorm import make_batch_reader
    from petastorm.tf_utils import make_petastorm_dataset

    def read(where: Path) -> Callable[[], Iterable[Any]]:
        reader = make_batch_reader(
            f"file://{where / 'parquet'}",
            schema_fields=[*NUMBERS, *TEXTS, LABEL],
            reader_pool_type=pool,
            workers_count=2,
            shuffle_row_groups=True,
            num_epochs=1,
        )
        atexit.register(reader.join)
        atexit.register(reader.stop)
        dataset = make_petastorm_dataset(reader)
        if how == "unbatch":
            dataset = dataset.unbatch().shuffle(10_000).batch(BATCH_ROWS)
        else:
            dataset = dataset.rebatch(BATCH_ROWS)
        dataset = dataset.prefetch(tf.data.AUTOTUNE)
        return lambda: (getattr(batch, LABEL) for batch in dataset)

    return two_passes(read, folder)


if __name__ == "__main__":
    perform({"petastorm": petastorm})
