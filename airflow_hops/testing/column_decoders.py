"""Contract tests of column decoders (entry points ``airflow_hops.column_decoders``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_hops.core.contract.artifacts import BadInput
from airflow_hops.ml.features.column_decoders import column_decoder
from airflow_hops.ml.features.feature_specs import Encoding, OutputSpec
from airflow_hops.ml.training.reader import open_split


class ColumnDecoderContract:
    """Tests that every column decoder passes; a subclass names the decoder and has encoded values for it."""

    decoder: ClassVar[str]
    options: ClassVar[Mapping[str, Any]] = {}
    """Arguments of the decoder: JSON values."""
    dtype: ClassVar[str]
    shape: ClassVar[tuple[int, ...]]
    """Dtype and shape of a decoded row."""
    values: ClassVar[Sequence[bytes]]
    """Different encoded values, two or more."""
    damaged: ClassVar[bytes | None] = None
    """A value that the decoder recognises as damaged, if there is any."""

    @pytest.fixture
    def spec(self) -> OutputSpec:
        return OutputSpec.from_dict(
            OutputSpec(self.dtype, encoding=Encoding(self.decoder, self.shape, self.options)).to_dict()
        )

    def decode(self, values: Sequence[bytes], spec: OutputSpec) -> np.ndarray:
        """Decodes values in a graph, as trainings do."""
        import tensorflow as tf

        assert spec.encoding is not None
        graph = tf.function(column_decoder(spec.encoding).decode, autograph=False)
        tensor = graph(tf.constant(list(values), tf.string))
        assert tensor.dtype.name == self.dtype
        return np.asarray(tensor)

    def test_decodes_each_row_by_itself(self, spec: OutputSpec) -> None:
        together = self.decode(self.values, spec)
        assert together.shape == (len(self.values), *self.shape)
        for row, value in enumerate(self.values):
            assert (self.decode([value], spec)[0] == together[row]).all()

    def test_a_training_reads_decoded_batches(self, spec: OutputSpec, tmp_path: Path) -> None:
        pq.write_table(pa.table({"column": pa.array(self.values, pa.binary())}), tmp_path / "part-0.parquet")
        (batch,) = open_split(tmp_path, {"column": spec}).dataset(len(self.values))
        assert (np.asarray(batch["column"]) == self.decode(self.values, spec)).all()

    def test_a_damaged_value_is_named_by_its_row(self, spec: OutputSpec, tmp_path: Path) -> None:
        if self.damaged is None:
            pytest.skip("the decoder recognises no damage")
        values = [*self.values, self.damaged]
        pq.write_table(pa.table({"column": pa.array(values, pa.binary())}), tmp_path / "part-0.parquet")
        with pytest.raises(BadInput, match=f"column 'column', row {len(self.values)}: "):
            open_split(tmp_path, {"column": spec})

    def test_refuses_unknown_options(self) -> None:
        with pytest.raises(BadInput):
            column_decoder(Encoding(self.decoder, self.shape, {**self.options, "no such option": 1}))
