"""Skew checks of ever more rows and features, and the tables that they check.

Runs in the runtime environment: ``python -m benchmarks.measurement.skew_growth write <folder> <rows> <features>`` makes
a reference and a captured window; the other ways are of :mod:`benchmarks.measurement.timing`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.measurement.flights_tables import MODEL, capture_rows
from benchmarks.measurement.worker import Work, perform, twice

REFERENCE_ROWS = 100_000
IDENTIFIER = "id"
_PART_ROWS = 50_000
_DIFFERENT = 100


def check(folder: str) -> Work:
    """Captured rows against the statistics of the reference, as the skew stage checks them, without a model."""
    import tensorflow_data_validation  # noqa: F401

    from airflow_hops.core.skew import SkewOptions
    from airflow_hops.ml.distances.detect import side_of
    from airflow_hops.ml.skew.compare import compare_rows
    from airflow_hops.ml.skew.feature_rows import FeatureRows
    from airflow_hops.ml.skew.fetch import Fetched, check_columns, read_span
    from airflow_hops.ml.skew.trained import Trained
    from airflow_hops.ml.statistics.summary import features_by_name, type_name

    nothing: Any = None

    def work() -> Mapping[str, Any]:
        reference = side_of(Path(folder) / "reference" / "FeatureStats.pb")
        types = {name: type_name(feature) for name, feature in features_by_name(reference.statistics).items()}
        trained = Trained(nothing, "train", nothing, nothing, reference, None, types)
        files = _captured(folder)
        for file in files:
            check_columns(file, types, None)
        fetched = Fetched(FeatureRows(files), read_span(files, None)[0])
        compared = compare_rows(trained, fetched, SkewOptions(model_name=MODEL, attribute=False, predictions=False))
        report = compared.report
        return {"rows": report.rows_current, "features": len(report.features), "drifted": len(report.drifted)}

    return twice(work)


def row_check(folder: str) -> Work:
    """Captured rows, value by value against those of the reference that have the same identifier."""
    import pyarrow.parquet as pq

    from airflow_hops.extensions.row_skew import detect_row_skew
    from airflow_hops.ml.readers.rows_file import RowsFile
    from airflow_hops.ml.skew.feature_rows import FeatureRows

    training = [RowsFile.at(Path(folder) / "training.parquet")]
    names = pq.ParquetFile(training[0].path).schema_arrow.names

    def work() -> Mapping[str, Any]:
        base, served = FeatureRows(training, ""), FeatureRows(_captured(folder))
        found = detect_row_skew(
            lambda columns: base(columns or names),
            lambda columns: served(columns or names),
            identifiers=[IDENTIFIER],
        )
        return {"rows": found.matches.test_with_id_count, "pairs": found.pairs, "skewed": found.skewed_pairs}

    return twice(work)


def write(folder: Path, rows: int, features: int) -> None:
    """The reference, and as many rows as the model server captures them; every tenth feature has drifted.

    ``reference``: statistics, and a sample of the rows.
    ``training.parquet``: as many rows as are captured, every second of which has the identifier of a captured one.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    from airflow_hops.ml.statistics import comparable_options
    from airflow_hops.ml.statistics.generate import collect_statistics
    from airflow_hops.ml.statistics.sample import write_sample

    (folder / "reference").mkdir(parents=True)
    parts = range(0, rows, _PART_ROWS)

    def made(start: int, moved: bool, step: int = 1) -> Any:
        return _frame(start, min(_PART_ROWS, rows - start), features, moved, step)

    capture_rows(folder / "captured", (made(start, True) for start in parts))
    schema = pa.Schema.from_pandas(made(0, False), preserve_index=False)
    with pq.ParquetWriter(folder / "training.parquet", schema) as writer:
        for start in parts:
            writer.write_table(pa.Table.from_pandas(made(start, False, step=2), schema, preserve_index=False))
    reference = pa.Table.from_pandas(_frame(0, REFERENCE_ROWS, features, False), preserve_index=False)
    collected = collect_statistics(reference, options=comparable_options(), exclude=[IDENTIFIER])
    (folder / "reference" / "FeatureStats.pb").write_bytes(collected.statistics.SerializeToString())
    write_sample(collected.sample, folder / "reference")


def _frame(start: int, rows: int, features: int, moved: bool, step: int = 1) -> Any:
    """Rows of five kinds of features in turn: few integers, many, normal, skewed with gaps, and strings.

    After :data:`_DIFFERENT` features they come again. A feature that has not drifted and whose p-value is below 0.1 by
    chance takes ten times as many permutations: a wide table shall not have more than its share of those.
    """
    import numpy as np
    import pandas as pd

    columns: dict[str, Any] = {IDENTIFIER: np.arange(start, start + rows) * step}
    words = np.array([f"value {number}" for number in range(100)], object)
    for number in range(features):
        if number % _DIFFERENT == 0:
            random = np.random.default_rng([start, moved, step])
        shift = 0.3 if moved and number % 10 == 0 else 0.0
        match number % 5:
            case 0:
                values: Any = random.poisson(3.0 + shift, rows)
            case 1:
                values = random.integers(0, 1_000_000, rows)
            case 2:
                values = random.normal(shift, 1.0, rows)
            case 3:
                values = np.where(random.random(rows) < 0.05, np.nan, random.lognormal(3.0, 1.0, rows))
            case _:
                values = words[np.minimum(random.zipf(1.5, rows), 100) - 1]
        columns[f"f{number:03}"] = values
    return pd.DataFrame(columns)


def _captured(folder: str) -> Any:
    from airflow_hops.ml.captured.requests import CapturedRequests

    requests = CapturedRequests(f"{folder}/captured", MODEL)
    return requests.fetch(requests.names(), Path(folder))


if __name__ == "__main__":
    if sys.argv[1] == "write":
        write(Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
    else:
        perform({"check": check, "row_check": row_check})
