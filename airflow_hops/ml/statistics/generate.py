"""Computes statistics of a source, equal to TFDV's, without Beam.

Each batch is added to the accumulators of TFDV's own combiners, and these are merged; the result is the
``DatasetFeatureStatisticsList`` that TFDV computes. It is the same for any number of processes, and on Spark
(:mod:`~airflow_hops.ml.statistics.combiners`). Memory depends on the batch size and the number of features, not on the
number of rows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from airflow_hops.core.errors import BadInput, InvalidArgument
from airflow_hops.ml.statistics.sample import SAMPLE_ROWS, RowSample

log = logging.getLogger(__name__)

PERCENTILES = 100
Engine = Literal["local", "spark"]


def comparable_options() -> object:
    """Returns TFDV's options with percentiles: deciles would not show changes in a tenth of the rows."""
    import tensorflow_data_validation as tfdv

    return tfdv.StatsOptions(num_quantiles_histogram_buckets=PERCENTILES)


def sampling_options(columns: Collection[str] | None = None) -> object:
    """Returns TFDV's options for a sample of some columns, or of all, without statistics."""
    import tensorflow_data_validation as tfdv

    return tfdv.StatsOptions(add_default_generators=False, feature_allowlist=columns and list(columns))


@dataclass(frozen=True)
class Collected:
    """Statistics, and how they were computed.

    Attributes:
        statistics: ``tensorflow_metadata.proto.v0.statistics_pb2.DatasetFeatureStatisticsList``.
        rows: Number of rows read, inside or outside the options' ``sample_rate``.
        sampled: Number of rows in the statistics.
        sample: ``pyarrow.Table``: a uniform sample of the rows in the statistics, in random order
            (:class:`~airflow_hops.ml.statistics.sample.RowSample`); None if none was wanted.
    """

    statistics: Any
    rows: int
    sampled: int
    sample: Any = None


def generate_statistics(
    source: object,
    *,
    options: object = None,
    engine: Engine = "local",
    processes: int | None = None,
    exclude: Collection[str] = (),
) -> object:
    """Computes TFDV statistics.

    They equal those of TFDV's Beam pipeline on the same rows. Quantiles, top values and numbers of distinct values are
    exact up to a number of distinct values (:mod:`~airflow_hops.ml.statistics.quantiles`), where TFDV estimates them.
    Values above 1,024 bytes are listed together, as by TFDV. NaN is a value, counted as ``num_nan``; null is missing.

    Args:
        source: A file, a folder or a glob, as a path or as a URI of fsspec; an
            ``airflow_hops.core.sources.sources.Source``; an Arrow table, or an iterable of record batches. Files are
            Parquet, CSV or JSON lines, identified by name or by content.
        options: ``tensorflow_data_validation.StatsOptions``; None for TFDV's defaults.
        engine: "local" for this machine, "spark" for the executors of the active Spark session.
        processes: Number of processes of the local engine; None for one per core if the source is large enough.
        exclude: Columns to leave out, such as a key.

    Returns:
        ``tensorflow_metadata.proto.v0.statistics_pb2.DatasetFeatureStatisticsList``: one data set or, if the options
        have slices, the whole (named "All Examples") followed by every slice.

    Raises:
        BadInput: the source has no file or no row, a file is corrupt, a column has a type without statistics or
            different types in different files, or an option requires Beam.
    """
    return collect_statistics(
        source,
        options=options,
        engine=engine,
        processes=processes,
        exclude=exclude,
        sample_rows=0,
    ).statistics


def collect_statistics(
    source: object,
    *,
    options: object = None,
    engine: Engine = "local",
    processes: int | None = None,
    exclude: Collection[str] = (),
    progress: Callable[[float], None] | None = None,
    sample_rows: int = SAMPLE_ROWS,
) -> Collected:
    """Computes statistics like :func:`generate_statistics`, and returns how they were computed, and a sample of rows.

    The sample depends only on the data, not on the number of processes or executors.

    Args:
        source: As in :func:`generate_statistics`, like the following arguments.
        options: Options.
        engine: Engine.
        processes: Number of processes.
        exclude: Columns to leave out.
        progress: Called periodically with the completed share, 0 to 1.
        sample_rows: Maximum rows of the sample; 0 for none.

    Raises:
        BadInput: as in :func:`generate_statistics`, or ``sample_rows`` is negative.
    """
    if engine not in ("local", "spark"):
        raise InvalidArgument("engine", engine, ", expected 'local' or 'spark'")
    if processes is not None and (not isinstance(processes, int) or processes < 1):
        raise InvalidArgument("processes", processes, ", expected a whole number of at least 1")
    if not isinstance(sample_rows, int) or sample_rows < 0:
        raise InvalidArgument("sample_rows", sample_rows, ", expected a whole number of at least 0")
    if isinstance(exclude, str):
        raise InvalidArgument("exclude", exclude, ", expected a list of columns")
    import tensorflow_data_validation as tfdv

    from airflow_hops.ml.statistics import local
    from airflow_hops.ml.statistics.combiners import Combiners
    from airflow_hops.ml.statistics.formats.feature_types import empty_batch
    from airflow_hops.ml.statistics.row_keys import keys_of
    from airflow_hops.ml.statistics.sources import TypesDoNotFit, plan_source

    options = options if options is not None else tfdv.StatsOptions()
    if not isinstance(options, tfdv.StatsOptions):
        raise BadInput(
            f"options is a {type(options).__name__}, expected tfdv.StatsOptions; "
            "airflow_hops.ml.statistics.options.options_from converts them from JSON"
        )
    columns = options.feature_allowlist or None
    if not all(isinstance(name, str) for name in columns or ()):
        raise BadInput(f"options: feature_allowlist is {columns!r}, expected names; TFDV takes no paths there")
    plan = plan_source(source, exclude=exclude, columns=columns)
    accumulate: Any = partial(local.accumulate, processes=processes)
    if engine == "spark":
        from airflow_hops.ml.statistics import spark

        accumulate = spark.accumulate
    while True:
        combiners = Combiners(options, plan.types.values())
        sample = RowSample(sample_rows) if sample_rows else None
        try:
            accumulator = accumulate(plan, combiners, sample, progress=progress)
            break
        except TypesDoNotFit as misfit:
            log.log(logging.WARNING if misfit.is_text else logging.INFO, "%s; starting again with wider types", misfit)
            plan = plan.widen(misfit)
    if not accumulator.rows:
        raise BadInput(f"{plan.name}: no rows; statistics need at least one")
    if not accumulator.sampled:
        raise BadInput(f"{plan.name}: none of {accumulator.rows} rows is in a sample of rate {options.sample_rate}")
    if not plan.types.keys() <= accumulator.columns:
        # Counts columns that only occur in files without rows, or in rows outside the sample, as missing.
        combiners.add(accumulator, empty_batch(plan.types), keys_of(0, 0, 0))
    plain_types = {item.name: item.type for item in empty_batch(plan.types).schema}
    table = sample.table(plain_types) if sample is not None else None
    return Collected(combiners.extract(accumulator), accumulator.rows, accumulator.sampled, table)
