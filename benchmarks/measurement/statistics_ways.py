"""The ways to statistics, and to a skew check, that are measured; each runs in the runtime environment by itself.

``python -m benchmarks.measurement.statistics_ways <way> <path> …``, for :mod:`benchmarks.measurement.timing`. Every way
to statistics has seen a small table of the same form before it is timed, so that what is imported at first use is.
"""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.measurement.flights_tables import MODEL, WARM_UP_ROWS
from benchmarks.measurement.worker import Work, perform, twice

BATCH_ROWS = 65_536


def ours(path: str) -> Work:
    """This project's ``generate_statistics``, on all cores."""
    from airflow_hops.ml.statistics import generate_statistics

    return _warmed_up(generate_statistics, path)


def spark(path: str) -> Work:
    """The same by the Spark engine, on ``local[cores]``; the first time all of its Python workers start and import."""
    from pyspark.sql import SparkSession

    from airflow_hops.ml.statistics import generate_statistics

    os.environ["PYSPARK_PYTHON"] = sys.executable  # executors are of this environment too
    session = SparkSession.builder.master(f"local[{len(os.sched_getaffinity(0))}]").config("spark.ui.enabled", "false")
    session.getOrCreate()
    return twice(lambda: _facts(generate_statistics(path, engine="spark")))


def tfdv_csv(path: str) -> Work:
    """TFDV's way from CSV, on Beam."""
    import tensorflow_data_validation as tfdv

    options = _beam_options()
    return _warmed_up(lambda file: tfdv.generate_statistics_from_csv(str(file), pipeline_options=options), path)


def tfdv_parquet(path: str) -> Work:
    """TFDV on Beam from Parquet: Beam reads row groups, and they go to TFDV in large batches, not row by row."""
    import apache_beam as beam
    import pyarrow as pa
    import tensorflow_data_validation as tfdv
    from tfx_bsl.arrow import array_util

    options = _beam_options()

    def as_lists(table: Any) -> Iterator[Any]:
        for batch in table.to_batches():
            columns = [c.cast(pa.large_binary()) if pa.types.is_string(c.type) else c for c in batch.columns]
            yield pa.RecordBatch.from_arrays(list(map(array_util.ToSingletonListArray, columns)), batch.schema.names)

    def generate(file: Path) -> Any:
        output = str(file.with_suffix(".pb"))
        with beam.Pipeline(options=options) as pipeline:
            _ = (
                pipeline
                | beam.io.ReadFromParquetBatched(str(file))
                | beam.FlatMap(as_lists)
                | tfdv.GenerateStatistics(tfdv.StatsOptions())
                | tfdv.WriteStatisticsToBinaryFile(output)
            )
        return tfdv.load_stats_binary(output)

    return _warmed_up(generate, path)


def tfdv_dataframe(path: str, jobs: str) -> Work:
    """TFDV's way from a pandas frame, which is there before the clock starts, as are the processes that it uses."""
    import pandas as pd
    import tensorflow_data_validation as tfdv

    frame = pd.read_parquet(path)
    generate = tfdv.generate_statistics_from_dataframe
    generate(frame.head(WARM_UP_ROWS), n_jobs=int(jobs))
    return lambda: _facts(generate(frame, n_jobs=int(jobs)))


def tfdv_batch(path: str) -> Work:
    """TFDV's way from Arrow, which is there before the clock starts: what a frame cannot hold."""
    import pyarrow.parquet as pq
    import tensorflow_data_validation as tfdv
    from tensorflow_data_validation.statistics import stats_impl

    def generate(file: Path) -> Work:
        (batch,) = pq.read_table(file).combine_chunks().to_batches()
        return lambda: _facts(stats_impl.generate_statistics_in_memory(batch, tfdv.StatsOptions()))

    generate(_warm_up_table(path))()
    return generate(Path(path))


def decode(path: str) -> Work:
    """Decodes the same columns with pyarrow on all cores, and drops them: the floor."""
    import pyarrow.csv
    import pyarrow.parquet as pq

    def read(file: Path) -> int:
        if file.suffix == ".csv":
            return int(pyarrow.csv.read_csv(file).num_rows)
        return sum(batch.num_rows for batch in pq.ParquetFile(file).iter_batches(BATCH_ROWS, use_threads=True))

    read(_warm_up_table(path))
    return lambda: {"rows": read(Path(path))}


def skew(folder: str) -> Work:
    """Captured rows against stored statistics, as the skew stage does it."""
    import tensorflow_data_validation  # noqa: F401

    from airflow_hops.core.skew import SkewTest
    from airflow_hops.ml.captured.requests import CapturedRequests
    from airflow_hops.ml.distances.detect import compare_sides, side_of
    from airflow_hops.ml.skew.feature_rows import FeatureRows
    from airflow_hops.ml.statistics.summary import features_by_name

    def check() -> Mapping[str, Any]:
        reference = side_of(Path(folder) / "reference" / "FeatureStats.pb")
        requests = CapturedRequests(f"{folder}/captured", MODEL)
        files = requests.fetch(requests.names(), Path(folder))
        current = FeatureRows(files).collect(list(features_by_name(reference.statistics)))
        report = compare_sides(reference, current, None, SkewTest())
        return {"rows": report.rows_current, "features": len(report.features), "drifted": len(report.drifted)}

    return twice(check)


def profile(path: str) -> Work:
    """This project's way in one process, under the profiler; prints where its time goes."""
    import cProfile
    import pstats

    from airflow_hops.ml.statistics import generate_statistics

    generate_statistics(_warm_up_table(path), processes=1)

    def work() -> Mapping[str, Any]:
        profiler = cProfile.Profile(time.process_time)
        statistics = profiler.runcall(generate_statistics, Path(path), processes=1)
        totals = pstats.Stats(profiler).stats  # type: ignore[attr-defined]
        slowest = sorted(totals.items(), key=lambda item: -item[1][3])[:45]
        lines = [
            {"function": f"{Path(file).name}:{line} {name}", "calls": calls, "own_s": own, "with_callees_s": whole}
            for (file, line, name), (_, calls, own, whole, _) in slowest
        ]
        return {**_facts(statistics), "lines": lines}

    return work


def _warmed_up(generate: Callable[[Path], Any], path: str) -> Work:
    generate(_warm_up_table(path))
    return lambda: _facts(generate(Path(path)))


def _warm_up_table(path: str) -> Path:
    table = Path(path)
    return table.with_name(f"{table.stem.rpartition('-')[0]}-{WARM_UP_ROWS}{table.suffix}")


def _facts(statistics: Any) -> Mapping[str, Any]:
    dataset = statistics.datasets[0]
    peak_kib = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return {"rows": int(dataset.num_examples), "features": len(dataset.features), "peak_rss_mib": peak_kib // 1024}


def _beam_options() -> Any:
    # What Beam's DirectRunner comes to for these pipelines, without first trying to download another runner.
    from apache_beam.options.pipeline_options import PipelineOptions

    return PipelineOptions(["--runner=apache_beam.runners.portability.fn_api_runner.FnApiRunner"])


if __name__ == "__main__":
    perform(
        {
            way.__name__: way
            for way in (ours, spark, tfdv_csv, tfdv_parquet, tfdv_dataframe, tfdv_batch, decode, skew, profile)
        }
    )
