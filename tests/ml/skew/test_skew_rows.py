"""Rows of files: in bounded batches, and compared in chunks of features."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_hops.core.errors import BadInput
from airflow_hops.core.skew import SkewOptions
from airflow_hops.ml.distances.detect import side_of
from airflow_hops.ml.readers.rows_file import RowsFile
from airflow_hops.ml.skew.compare import compare_rows
from airflow_hops.ml.skew.feature_rows import FeatureRows
from airflow_hops.ml.skew.fetch import CapturedSpan, Fetched
from airflow_hops.ml.skew.trained import Trained
from airflow_hops.ml.statistics import comparable_options, generate_statistics
from airflow_hops.ml.statistics.formats.layout import BATCH_BYTES
from airflow_hops.ml.statistics.summary import features_by_name


@pytest.fixture
def wide(tmp_path: Path) -> RowsFile:
    """12,000 rows of 500 features, 48 MB, in one row group."""
    values = np.arange(12_000.0)
    columns = {f"input.f{number}": values + number for number in range(500)}
    pq.write_table(pa.table(columns), tmp_path / "rows.parquet", compression="zstd")
    return RowsFile.at(tmp_path / "rows.parquet")


def test_wide_rows_come_in_bounded_batches_in_requested_order(wide: RowsFile) -> None:
    names = [f"f{number}" for number in reversed(range(500))]
    batches = list(FeatureRows([wide])(names))
    assert max(batch.nbytes for batch in batches) < 1.1 * BATCH_BYTES
    assert all(batch.schema.names == names for batch in batches)
    rows = pa.Table.from_batches(batches)
    assert rows["f7"].to_pylist() == (np.arange(12_000.0) + 7).tolist()


@pytest.mark.slow
def test_comparing_features_in_chunks_changes_no_result(tmp_path: Path) -> None:
    random = np.random.default_rng(7)
    words = np.array(["one", "two", "three"], object)
    old = pa.table({f"f{number}": words[random.integers(0, 3, 2_000)] for number in range(201)})
    new = old.set_column(200, "f200", pa.array(words[random.integers(0, 2, 2_000)]))
    pq.write_table(new, tmp_path / "after.parquet")
    together = generate_statistics(new, options=comparable_options())
    nothing: Any = None
    rows = FeatureRows([RowsFile.at(tmp_path / "after.parquet")], "")
    reference = side_of(old)
    types = dict.fromkeys(old.column_names, "STRING")
    compared = compare_rows(
        Trained(nothing, "train", nothing, nothing, reference, None, types),
        Fetched(rows, CapturedSpan(rows=2_000, versions={"1": 2_000})),
        SkewOptions(model_name="wide", attribute=False, predictions=False),
    )
    assert compared.current is not None
    assert features_by_name(compared.current.statistics) == features_by_name(together)
    assert compared.current.rows == 2_000 and compared.current.sample is not None
    assert sorted(compared.current.sample.to_pylist(), key=str) == sorted(new.to_pylist(), key=str)
    assert rows.sample(old.column_names).equals(compared.current.sample), "the same without statistics"
    assert compared.report.drifted == ("f200",)


def test_missing_feature_is_named_with_the_existing_ones(wide: RowsFile) -> None:
    with pytest.raises(BadInput, match=r"rows\.parquet: there is no column 'input\.gone'; it has input\.f0, input\.f1"):
        list(FeatureRows([wide])(["f0", "gone"]))
