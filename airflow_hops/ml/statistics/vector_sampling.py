"""Combiner that keeps a sample of every vector feature. It imports TFDV; import it inside functions."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from tensorflow_data_validation.statistics.generators.stats_generator import CombinerStatsGenerator
from tensorflow_metadata.proto.v0 import statistics_pb2

from airflow_hops.ml.statistics.formats.feature_types import is_list
from airflow_hops.ml.statistics.number_counts import NumberCounts
from airflow_hops.ml.statistics.vectors import pack_sample

SAMPLE_ROWS = 1000
"""Maximum vectors of a sample: a test of some thousand permutations takes a second for as many."""
SAMPLE_NUMBERS = 1 << 20
"""Maximum numbers of a sample, to bound the statistics' size: wide vectors have fewer rows."""
_LEAST_ROWS = 100

Array = np.ndarray[Any, Any]


@dataclass
class Sample:
    """Uniform sample of the vectors added so far: those with the lowest random numbers.

    Attributes:
        width: Length of the vectors; 1 for a feature with one number per row, which has no sample; 0 if lengths differ.
        drawn: Random numbers of the sampled vectors, 0 to 1.
        vectors: ``[rows, width]``, float32.
    """

    width: int
    drawn: Array = field(default_factory=lambda: np.zeros(0))
    vectors: Array = field(default_factory=lambda: np.zeros((0, 0), np.float32))

    def merged(self, other: Sample) -> Sample:
        """Merges two samples."""
        if self.width != other.width:
            return Sample(0)
        if self.width < 2:
            return self
        drawn, vectors = np.concatenate([self.drawn, other.drawn]), np.concatenate([self.vectors, other.vectors])
        return Sample(self.width, drawn, vectors).thinned()

    def thinned(self) -> Sample:
        """Reduces the sample to its maximum size."""
        most = max(_LEAST_ROWS, min(SAMPLE_ROWS, SAMPLE_NUMBERS // self.width))
        lowest = np.argsort(self.drawn, kind="stable")[:most]
        return Sample(self.width, self.drawn[lowest], self.vectors[lowest])


class VectorSamples(CombinerStatsGenerator):  # type: ignore[misc]
    """Samples the vectors of each feature that is a list of floats of the same length in all rows.

    Vectors with NaN or an infinity are skipped. Random numbers depend only on the batch, so that the same batches give
    the same sample.
    """

    def __init__(self) -> None:
        super().__init__("VectorSamples")

    def create_accumulator(self) -> dict[str, Sample]:
        """Returns no samples."""
        return {}

    def add_input(self, accumulator: Any, batch: pa.RecordBatch) -> Any:
        """Adds a batch of list columns; None, for a slice that is not sampled, stays None."""
        if accumulator is not None:
            for name, column in zip(batch.schema.names, batch.columns, strict=True):
                result = _sample(column)
                if result is not None:
                    accumulator[name] = accumulator[name].merged(result) if name in accumulator else result
        return accumulator

    def merge_accumulators(self, accumulators: Iterable[Any]) -> Any:
        """Merges accumulators."""
        merged, *others = accumulators
        for other in others if merged is not None else ():
            for name, sample in (other or {}).items():
                merged[name] = merged[name].merged(sample) if name in merged else sample
        return merged

    def extract_output(self, accumulator: Mapping[str, Sample] | None) -> Any:
        """Returns the samples as custom statistics of their features."""
        result = statistics_pb2.DatasetFeatureStatistics()
        for name, sample in (accumulator or {}).items():
            if sample.width > 1:
                feature = result.features.add()
                feature.path.step.append(name)
                pack_sample(feature, sample.vectors)
        return result


def with_vector_samples(options: Any) -> Any:
    """Adds generators of vector samples and number counts to TFDV's options."""
    generators = options.generators or []
    for kind in (VectorSamples, NumberCounts):
        if not any(isinstance(one, kind) for one in generators):
            generators = [*generators, kind()]
    options.generators = generators
    return options


def _sample(column: Any) -> Sample | None:
    """Samples a batch's column; None if it is not a list of floats, or has no lists."""
    rows = len(column) - column.null_count
    if not is_list(column.type) or not pa.types.is_floating(column.type.value_type) or not rows:
        return None
    values = column.values
    if len(values) == rows:
        return Sample(1)
    width, left = divmod(len(values), rows)
    if left or width < 2 or pc.min_max(pc.list_value_length(column)).as_py() != {"min": width, "max": width}:
        return Sample(0)
    matrix = values.to_numpy(zero_copy_only=False).astype(np.float32).reshape(rows, width)
    matrix = matrix[np.isfinite(matrix).all(axis=1)]
    drawn = np.random.default_rng(zlib.crc32(matrix.tobytes())).random(len(matrix))
    return Sample(width, drawn, matrix).thinned()
