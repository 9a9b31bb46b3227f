"""Runs TFDV's combiners for one set of options over Arrow record batches.

Batches go through the steps of TFDV's Beam pipeline (``tfdv.GenerateStatistics``: sampling, selection of features,
slices, the options' generators, merging) in the same order, without Beam.

Statistics depend on the source and the options alone, whatever computes them:

1. A source has parts, and a part has units of rows; both are the same on every machine.
2. Each unit gets an accumulator of its own. Any process may compute it.
3. Accumulators of the units of a part are merged, and those of the parts, each in the source's order and in a tree of
   fixed form (:meth:`Combiners.merge_tree`), here or in Spark's tasks.
4. What an accumulator drops when it is full depends on its rows alone (:mod:`~airflow_hops.ml.statistics.quantiles`).
5. Small batches of slices wait in the accumulator for more rows, and are merged with it.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import math
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from operator import itemgetter
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

from airflow_hops.core.errors import BadInput
from airflow_hops.core.versions import has_slices, slicers
from airflow_hops.ml.statistics import histograms
from airflow_hops.ml.statistics.arrow_lists import as_lists
from airflow_hops.ml.statistics.formats.feature_types import batch_of
from airflow_hops.ml.statistics.formats.layout import UnitShare
from airflow_hops.ml.statistics.quantiles import SLICE_VALUES, Quantiles, values_per_feature
from airflow_hops.ml.statistics.row_keys import Keys, drawn, priorities_of
from airflow_hops.ml.statistics.sample import RowSample
from airflow_hops.ml.statistics.top_values import TopValues

_WAITING_ROWS = 16_384
_SMALL_ROWS = 1_024
_WAITING_BYTES = 128 << 20
MAX_SLICES = 5_000
"""Maximum number of slices, each of which has statistics of every feature in memory."""


LEAST_EPSILON = 0.002
"""Error of quantiles that is guaranteed for any number of rows, as a share of them; TFDV's default is 0.01."""


@dataclass
class SliceAccumulator:
    """State of one slice: the generators' accumulators, and small batches that wait for more rows."""

    parts: list[Any]
    waiting: list[pa.RecordBatch] = field(default_factory=list)
    rows: int = 0
    size: int = 0

    def wait(self, batches: list[pa.RecordBatch], rows: int, size: int) -> None:
        """Adds small batches, with their rows and bytes."""
        self.waiting += batches
        self.rows += rows
        self.size += size


@dataclass
class Accumulator:
    """State of the rows added so far; can be pickled.

    Attributes:
        slices: By slice key; without slices, only the whole data set, under the key None.
        rows: Rows added, sampled or not.
        sampled: Rows in the statistics: all, or a sample at the options' ``sample_rate``.
        columns: Columns in the sampled rows or their schema.
    """

    slices: dict[str | None, SliceAccumulator] = field(default_factory=dict)
    rows: int = 0
    sampled: int = 0
    columns: set[str] = field(default_factory=set)


class Combiners:
    """Turns record batches into a ``DatasetFeatureStatisticsList``.

    Can be pickled if its options can; generators are created on first use.

    Args:
        options: ``tensorflow_data_validation.StatsOptions``.
        types: Types of the columns, which bound the values that are kept of each feature.

    Raises:
        BadInput: the options name a generator that needs Beam, a sample rate of semantic domains, or a small epsilon.
    """

    def __init__(self, options: tfdv.StatsOptions, types: Iterable[pa.DataType] = ()) -> None:
        self.options = options
        self._most = values_per_feature(types)
        # Not functools.cached_property: its lock is shared by all instances, and would stay locked in a process that
        # is forked while another thread holds it.
        self._generators: dict[bool, list[CombinerStatsGenerator]] = {}
        self._slicers: tuple[list[Any], Any] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_generators": {}, "_slicers": None}

    def generators(self, key: str | None) -> list[CombinerStatsGenerator]:
        """Returns the generators of a slice, in the order of an accumulator's parts."""
        is_whole = key in (None, constants.DEFAULT_SLICE_KEY)
        if is_whole not in self._generators:
            made = _generators(self.options, self._most if is_whole else SLICE_VALUES)
            for generator in made:
                generator.setup()
            self._generators[is_whole] = made
        return self._generators[is_whole]

    @property
    def is_sliced(self) -> bool:
        """Whether the options define slices."""
        return has_slices(self.options)

    def add(self, accumulator: Accumulator, batch: pa.RecordBatch, keys: Keys, sample: RowSample | None = None) -> None:
        """Adds a batch of flat or nested columns to an accumulator.

        Args:
            accumulator: State so far.
            batch: Rows to add.
            keys: Keys of the rows (:mod:`~airflow_hops.ml.statistics.row_keys`), uint64.
            sample: Draws from the rows that are in the statistics.

        Raises:
            BadInput: a slicing function fails, or a feature's type differs from that in earlier batches.
        """
        accumulator.rows += batch.num_rows
        # A batch without rows is not sampled: its columns count as missing if no other batch has them.
        if self.options.sample_rate is not None and batch.num_rows:
            chosen = drawn(keys, self.options.sample_rate)
            if not len(chosen):
                return
            batch, keys = _take(batch, chosen), keys[chosen]
        if sample is not None:
            sample.add(batch, priorities_of(keys))
        accumulator.sampled += batch.num_rows
        accumulator.columns.update(batch.schema.names)
        lists = self._selected(as_lists(batch))
        if not self.is_sliced:
            self._add_batch(None, self._slice(accumulator, None), lists)
            return
        whole = constants.DEFAULT_SLICE_KEY
        self._add_batch(whole, self._slice(accumulator, whole), lists)
        for key, rows in self._slices(lists) if lists.num_rows else ():
            self._slice(accumulator, key).wait([rows], rows.num_rows, rows.nbytes)
        self._settle(accumulator, _WAITING_ROWS)

    def merge(self, accumulator: Accumulator, other: Accumulator) -> Accumulator:
        """Adds the accumulator of later rows, which must not be used afterwards; returns the first."""
        accumulator.rows += other.rows
        accumulator.sampled += other.sampled
        accumulator.columns |= other.columns
        for key, part in other.slices.items():
            if key not in accumulator.slices:
                self._slice(accumulator, key)
                accumulator.slices[key] = part
                continue
            mine = accumulator.slices[key]
            with _explained():
                mine.parts = [
                    generator.merge_accumulators(pair)
                    for generator, *pair in zip(self.generators(key), mine.parts, part.parts, strict=True)
                ]
            mine.wait(part.waiting, part.rows, part.size)
        self._settle(accumulator, _WAITING_ROWS)
        return accumulator

    def accumulate(
        self, plan: Any, part: object, share: UnitShare, sample: RowSample | None
    ) -> Iterator[tuple[int, Accumulator]]:
        """Yields the accumulators of the units of a share of a part, with the units' numbers."""
        batches = plan.read_units(part, share)
        for unit, run in itertools.groupby(batches, key=itemgetter(0)):
            accumulator = Accumulator()
            for _, batch, keys in run:
                self.add(accumulator, batch, keys, sample)
            self._settle(accumulator, _SMALL_ROWS)
            yield unit, accumulator

    def accumulate_parts(
        self,
        plan: Any,
        parts: Iterable[Any],
        sample: RowSample | None,
        report: Callable[[int], None] = lambda size: None,
    ) -> Iterator[Accumulator]:
        """Yields the accumulators of whole parts; reports the size of each."""
        for part in parts:
            units = self.accumulate(plan, part, UnitShare(), sample)
            yield self.merge_tree(accumulator for _, accumulator in units)
            report(part.size)

    def merge_tree(self, accumulators: Iterable[Accumulator]) -> Accumulator:
        """Merges accumulators of consecutive rows.

        Neighbours are merged, then pairs of neighbours, and so on. So the result is the same if runs of 2, 4, 8 … of
        them, counted from the first, were merged before by this function, and memory holds one of each size.
        """
        pending: list[tuple[int, Accumulator]] = []
        for accumulator in accumulators:
            level = 0
            while pending and pending[-1][0] == level:
                accumulator = self.merge(pending.pop()[1], accumulator)
                level += 1
            pending.append((level, accumulator))
        last = [accumulator for _, accumulator in reversed(pending)]
        return functools.reduce(lambda later, earlier: self.merge(earlier, later), last) if last else Accumulator()

    def extract(self, accumulator: Accumulator) -> statistics_pb2.DatasetFeatureStatisticsList:
        """Returns the statistics: the whole data set first, then the slices ordered by key."""
        self._settle(accumulator, 0)
        result = statistics_pb2.DatasetFeatureStatisticsList()
        first = constants.DEFAULT_SLICE_KEY if self.is_sliced else None
        self._compact(accumulator)
        for key in sorted(accumulator.slices, key=lambda key: (key != first, key or "")):
            with histograms.made_at_once():
                results = stats_impl.extract_statistics_output(accumulator.slices[key].parts, self.generators(key))
            dataset = result.datasets.add()
            dataset.CopyFrom(results.datasets[0])
            if key is not None:
                dataset.name = key
            for feature in dataset.features:
                if feature.WhichOneof("stats") == "num_stats":
                    _mark_unknown_deviations(feature.num_stats)
        return result

    def _compact(self, accumulator: Accumulator) -> None:
        """Compacts the states of features in threads, as sorting and hashing release the GIL."""
        features = [
            (generator, {path: state})
            for key, of_slice in accumulator.slices.items()
            for generator, part in zip(self.generators(key), of_slice.parts, strict=True)
            if isinstance(generator, BasicStatsGenerator | TopValues)
            for path, state in part.items()
        ]
        cores = len(os.sched_getaffinity(0))

        def compact(core: int) -> None:
            for generator, part in features[core::cores]:
                generator.compact(part)

        with ThreadPoolExecutor(cores) as pool:
            list(pool.map(compact, range(cores)))

    def _slice(self, accumulator: Accumulator, key: str | None) -> SliceAccumulator:
        if key not in accumulator.slices:
            if len(accumulator.slices) > MAX_SLICES:
                raise BadInput(
                    f"slices: more than {MAX_SLICES}, {key!r} among them; expected to slice by features of few values, "
                    "or by chosen values"
                )
            parts = [each.create_accumulator() for each in self.generators(key)]
            accumulator.slices[key] = SliceAccumulator(parts)
        return accumulator.slices[key]

    def _add_batch(self, key: str | None, part: SliceAccumulator, lists: pa.RecordBatch) -> None:
        with _explained():
            part.parts = [g.add_input(a, lists) for g, a in zip(self.generators(key), part.parts, strict=True)]

    def _settle(self, accumulator: Accumulator, rows: int) -> None:
        """Adds the waiting batches of slices with so many rows; if those left are too large, also the largest."""
        left = sum(part.size for part in accumulator.slices.values())
        for key, part in sorted(accumulator.slices.items(), key=lambda item: -item[1].size):
            if part.waiting and (part.rows >= rows or left > _WAITING_BYTES):
                left -= part.size
                for _, run in itertools.groupby(part.waiting, key=lambda batch: batch.schema):
                    self._add_batch(key, part, table_util.MergeRecordBatches(list(run)))
                part.waiting, part.rows, part.size = [], 0, 0

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


def _mark_unknown_deviations(numbers: statistics_pb2.NumericStatistics) -> None:
    """Sets deviations to NaN that TFDV 1.17 gives as 0 because float64 does not hold the variance."""
    weighted = [numbers.weighted_numeric_stats] if numbers.HasField("weighted_numeric_stats") else []
    for each in (numbers, *weighted):
        if each.std_dev == 0 and -math.inf < numbers.min < numbers.max < math.inf:
            each.std_dev = math.nan


def _take(batch: pa.RecordBatch, rows: np.ndarray) -> pa.RecordBatch:
    if not batch.num_columns:
        return batch_of([], [], len(rows))
    return pa.Table.from_batches([batch]).take(pa.array(rows)).combine_chunks().to_batches()[0]


def _generators(options: tfdv.StatsOptions, most: int) -> list[CombinerStatsGenerator]:
    if options.semantic_domain_stats_sample_rate is not None:
        raise BadInput("options: semantic_domain_stats_sample_rate draws at random, so results would differ; omit it")
    if options.label_feature is not None:
        raise BadInput("options: label_feature is for lift, which TFDV computes on Beam alone; omit it")
    if options.epsilon < LEAST_EPSILON:
        raise BadInput(f"options: epsilon is {options.epsilon}, expected at least {LEAST_EPSILON}")
    try:
        result = stats_impl.get_generators(copy.copy(options), in_memory=True)
    except TypeError as error:
        raise BadInput(f"options: {error} Without Beam, only combiners are supported") from error
    generators = []
    for generator in result:
        if type(generator) is TopKUniquesSketchStatsGenerator:
            generator = TopValues(options, most)
        elif type(generator) is BasicStatsGenerator:
            generator._make_quantiles_sketch_fn = functools.partial(Quantiles, most)
        generators.append(generator)
    return generators


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    """Turns TFDV's errors, for example about a feature of two types, into ``BadInput``."""
    try:
        yield
    except (TypeError, ValueError) as error:
        raise BadInput(f"statistics: {error}") from error
