"""Runs TFDV's combiners for one set of options over Arrow record batches.

Batches go through the steps of TFDV's Beam pipeline (``tfdv.GenerateStatistics``: sampling, selection of features,
slices, the options' generators, merging) in the same order, without Beam.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import tensorflow_data_validation as tfdv
from tensorflow_data_validation import constants
from tensorflow_data_validation.statistics import stats_impl
from tensorflow_data_validation.statistics.generators.basic_stats_generator import BasicStatsGenerator
from tensorflow_data_validation.statistics.generators.stats_generator import CombinerStatsGenerator
from tensorflow_data_validation.statistics.generators.top_k_uniques_sketch_stats_generator import (
    TopKUniquesSketchStatsGenerator,
)
from tensorflow_data_validation.utils import slicing_util
from tensorflow_metadata.proto.v0 import statistics_pb2
from tfx_bsl.arrow import table_util

from airflow_hops.core.contract.artifacts import BadInput
from airflow_hops.core.versions import has_slices, slicers
from airflow_hops.ml.statistics import histograms
from airflow_hops.ml.statistics.arrow_lists import as_lists
from airflow_hops.ml.statistics.formats.feature_types import batch_of
from airflow_hops.ml.statistics.row_keys import Keys, drawn, keys_of, priorities_of
from airflow_hops.ml.statistics.sample import RowSample
from airflow_hops.ml.statistics.sketches import CountedQuantiles, CountedTopValues

_SLICE_ROWS = 16_384
_SLICE_BYTES = 8 << 20
_WAITING_BYTES = 128 << 20
MAX_SLICES = 5_000
"""Maximum number of slices, each of which has statistics of every feature in memory."""


@dataclass
class SliceAccumulator:
    """State of one slice: the generators' accumulators, and small batches that wait for more rows."""

    parts: list[Any]
    waiting: list[pa.RecordBatch] = field(default_factory=list)
    waiting_rows: int = 0
    waiting_bytes: int = 0


@dataclass
class Accumulator:
    """State of the rows added so far; can be pickled.

    Attributes:
        slices: By slice key; without slices, only the whole data set, under the key None.
        rows: Rows added, sampled or not.
        sampled: Rows in the statistics: all, or a sample at the options' ``sample_rate``.
        columns: Columns in the sampled rows or their schema.
        sample: Rows drawn from those in the statistics; None for none.
        waiting_bytes: Upper bound for the bytes of the batches waiting in all slices.
    """

    slices: dict[str | None, SliceAccumulator] = field(default_factory=dict)
    rows: int = 0
    sampled: int = 0
    columns: set[str] = field(default_factory=set)
    sample: RowSample | None = None
    waiting_bytes: int = 0


class Combiners:
    """Turns record batches into a ``DatasetFeatureStatisticsList``.

    Can be pickled if its options can; generators are created on first use.

    Args:
        options: ``tensorflow_data_validation.StatsOptions``.
        generators: Generators to run instead of those of the options.
        looks_twice: Whether a second pass will count the top values of features with very many values.
        sample_rows: Maximum rows of the sample of rows; 0 for none.

    Raises:
        BadInput: the options name a generator that needs Beam.
    """

    def __init__(
        self,
        options: tfdv.StatsOptions,
        generators: Sequence[CombinerStatsGenerator] | None = None,
        *,
        looks_twice: bool = False,
        sample_rows: int = 0,
    ) -> None:
        self.options = options
        self.looks_twice = looks_twice
        self._sample_rows = sample_rows
        self._given = generators
        # Not functools.cached_property: its lock is shared by all instances, and would stay locked in a process that
        # is forked while another thread holds it.
        self._generators: list[CombinerStatsGenerator] | None = None
        self._slicers: tuple[list[Any], Any] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        made = partial(type(self), looks_twice=self.looks_twice, sample_rows=self._sample_rows)
        return made, (self.options, self._given)

    @property
    def generators(self) -> list[CombinerStatsGenerator]:
        """Generators, in the order of an accumulator's parts."""
        if self._generators is None:
            made = list(self._given) if self._given is not None else _generators(self.options, self.looks_twice)
            for generator in made:
                generator.setup()
            self._generators = made
        return self._generators

    @property
    def is_sliced(self) -> bool:
        """Whether the options define slices."""
        return has_slices(self.options)

    def create(self) -> Accumulator:
        """Returns an empty accumulator."""
        return Accumulator(sample=RowSample(self._sample_rows) if self._sample_rows else None)

    def add(self, accumulator: Accumulator, batch: pa.RecordBatch, keys: Keys | None = None) -> Accumulator:
        """Adds a batch of flat or nested columns to an accumulator, and returns it.

        Args:
            accumulator: State so far.
            batch: Rows to add.
            keys: Keys of the rows (:mod:`~airflow_hops.ml.statistics.row_keys`), uint64; None to number the
                accumulator's rows.

        Raises:
            BadInput: a slicing function fails, or a feature's type differs from that in earlier batches.
        """
        if keys is None:
            keys = keys_of(0, accumulator.rows, batch.num_rows)
        accumulator.rows += batch.num_rows
        # A batch without rows is not sampled: its columns count as missing if no other batch has them.
        if self.options.sample_rate is not None and batch.num_rows:
            chosen = drawn(keys, self.options.sample_rate)
            if not len(chosen):
                return accumulator
            batch, keys = _take(batch, chosen), keys[chosen]
        if accumulator.sample is not None:
            accumulator.sample.add(batch, priorities_of(keys))
        accumulator.sampled += batch.num_rows
        accumulator.columns.update(batch.schema.names)
        lists = self._selected(as_lists(batch))
        if not self.is_sliced:
            self._add_batch(self._slice(accumulator, None), lists)
            return accumulator
        self._add_batch(self._slice(accumulator, constants.DEFAULT_SLICE_KEY), lists)
        for key, rows in self._slices(lists) if lists.num_rows else ():
            waiting = self._slice(accumulator, key)
            waiting.waiting.append(rows)
            waiting.waiting_rows += rows.num_rows
            waiting.waiting_bytes += rows.nbytes
            accumulator.waiting_bytes += rows.nbytes
            if waiting.waiting_rows >= _SLICE_ROWS or waiting.waiting_bytes >= _SLICE_BYTES:
                self._settle(waiting)
            if accumulator.waiting_bytes > _WAITING_BYTES:
                # Halves the waiting batches, so that memory does not grow with the number of slices.
                parts = sorted(accumulator.slices.values(), key=lambda part: -part.waiting_bytes)
                left = sum(part.waiting_bytes for part in parts)
                for part in parts:
                    if left <= _WAITING_BYTES // 2:
                        break
                    left -= part.waiting_bytes
                    self._settle(part)
                accumulator.waiting_bytes = left
        return accumulator

    def merge(self, accumulators: Iterable[Accumulator]) -> Accumulator:
        """Merges accumulators of different rows into the first; the others must not be used afterwards."""
        merged, *others = accumulators
        for other in others:
            merged.rows += other.rows
            merged.sampled += other.sampled
            merged.columns |= other.columns
            if merged.sample is not None and other.sample is not None:
                merged.sample.merged(other.sample)
            for key, part in other.slices.items():
                self._settle(part)
                if key not in merged.slices:
                    merged.slices[key] = part
                    continue
                mine = merged.slices[key]
                self._settle(mine)
                with _explained():
                    mine.parts = [
                        generator.merge_accumulators(pair)
                        for generator, *pair in zip(self.generators, mine.parts, part.parts, strict=True)
                    ]
        return merged

    def settle(self, accumulator: Accumulator) -> Accumulator:
        """Adds the waiting batches and compacts the accumulator, before it is sent to another process."""
        for part in accumulator.slices.values():
            self._settle(part)
            part.parts = [generator.compact(a) for generator, a in zip(self.generators, part.parts, strict=True)]
        if accumulator.sample is not None:
            accumulator.sample.compact()
        return accumulator

    def extract(self, accumulator: Accumulator) -> statistics_pb2.DatasetFeatureStatisticsList:
        """Returns the statistics: the whole data set first, then the slices ordered by key."""
        self.settle(accumulator)
        result = statistics_pb2.DatasetFeatureStatisticsList()
        first = constants.DEFAULT_SLICE_KEY if self.is_sliced else None
        for key in sorted(accumulator.slices, key=lambda key: (key != first, key or "")):
            with histograms.made_at_once():
                results = stats_impl.extract_statistics_output(accumulator.slices[key].parts, self.generators)
            dataset = result.datasets.add()
            dataset.CopyFrom(results.datasets[0])
            if key is not None:
                dataset.name = key
        return result

    def _slice(self, accumulator: Accumulator, key: str | None) -> SliceAccumulator:
        if key not in accumulator.slices:
            if len(accumulator.slices) > MAX_SLICES:
                raise BadInput(
                    f"slices: more than {MAX_SLICES}, {key!r} among them; expected to slice by features of few values, "
                    "or by chosen values"
                )
            accumulator.slices[key] = SliceAccumulator([each.create_accumulator() for each in self.generators])
        return accumulator.slices[key]

    def _add_batch(self, part: SliceAccumulator, lists: pa.RecordBatch) -> None:
        with _explained():
            part.parts = [g.add_input(a, lists) for g, a in zip(self.generators, part.parts, strict=True)]

    def _settle(self, part: SliceAccumulator) -> None:
        if part.waiting:
            whole = part.waiting[0] if len(part.waiting) == 1 else table_util.MergeRecordBatches(part.waiting)
            self._add_batch(part, whole)
            part.waiting, part.waiting_rows, part.waiting_bytes = [], 0, 0

    def _selected(self, lists: pa.RecordBatch) -> pa.RecordBatch:
        allowed = self.options.feature_allowlist
        if not allowed:
            return lists
        if not any(name in lists.schema.names for name in allowed):
            return batch_of([], [], lists.num_rows)
        return stats_impl._filter_features(lists, allowed)

    def _slices(self, lists: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        if self._slicers is None:
            self._slicers = slicers(self.options)
        functions, queries = self._slicers
        try:
            if functions:
                yield from slicing_util.generate_slices(lists, functions)
            if queries is not None:
                yield from ((key, rows) for key, rows in queries.process(lists) if key != constants.DEFAULT_SLICE_KEY)
        except ValueError as error:
            raise BadInput(f"slices: {error}") from error


def _take(batch: pa.RecordBatch, rows: np.ndarray) -> pa.RecordBatch:
    if not batch.num_columns:
        return batch_of([], [], len(rows))
    return pa.Table.from_batches([batch]).take(pa.array(rows)).combine_chunks().to_batches()[0]


def _generators(options: tfdv.StatsOptions, looks_twice: bool) -> list[CombinerStatsGenerator]:
    try:
        result = stats_impl.get_generators(copy.copy(options), in_memory=True)
    except TypeError as error:
        raise BadInput(f"options: {error} Without Beam, only combiners are supported") from error
    generators = []
    for generator in result:
        if type(generator) is TopKUniquesSketchStatsGenerator:
            generator = CountedTopValues(options, looks_twice=looks_twice)
        elif type(generator) is BasicStatsGenerator:
            generator._make_quantiles_sketch_fn = partial(CountedQuantiles, options.epsilon)
        generators.append(generator)
    if options.label_feature and options.schema is not None:
        from airflow_hops.ml.statistics.lift import LiftGenerator

        label = tfdv.FeaturePath([options.label_feature])
        generators.append(LiftGenerator(label, schema=options.schema, weights=options.example_weight_map))
    return generators


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    """Turns TFDV's errors, for example about a feature of two types, into ``BadInput``."""
    try:
        yield
    except (TypeError, ValueError) as error:
        raise BadInput(f"statistics: {error}") from error
