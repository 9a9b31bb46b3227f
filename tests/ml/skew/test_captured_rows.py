"""Reading captured rows, however many features they have."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_hops.contract.artifacts import BadInput
from airflow_hops.runtime.captured.requests import RowsFile
from airflow_hops.runtime.feature_statistics.formats.layout import BATCH_BYTES
from airflow_hops.runtime.skew.captured_rows import read_features

pytestmark = pytest.mark.runtime


@pytest.fixture
def wide(tmp_path: Path) -> RowsFile:
    """12,000 rows of 500 features, 48 MB, in one row group."""
    values = np.arange(12_000.0)
    columns = {f"input.f{number}": values + number for number in range(500)}
    pq.write_table(pa.table(columns), tmp_path / "rows.parquet", compression="zstd")
    return RowsFile.at(tmp_path / "rows.parquet")


def test_wide_rows_come_in_batches_of_bounded_size_with_the_features_in_the_order_asked_for(wide: RowsFile) -> None:
    names = [f"f{number}" for number in reversed(range(500))]
    batches = list(read_features([wide], names))
    assert max(batch.nbytes for batch in batches) < 1.1 * BATCH_BYTES
    assert all(batch.schema.names == names for batch in batches)
    rows = pa.Table.from_batches(batches)
    assert rows["f7"].to_pylist() == (np.arange(12_000.0) + 7).tolist()


def test_missing_feature_is_named_with_those_that_are_there(wide: RowsFile) -> None:
    with pytest.raises(BadInput, match=r"rows\.parquet: there is no column 'input\.gone'; found input\.f0, input\.f1"):
        list(read_features([wide], ["f0", "gone"]))
