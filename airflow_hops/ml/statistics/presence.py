"""Counts of values in each row, where TFDV counts what is known: rows of one value each."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import pyarrow as pa
from tensorflow_data_validation.statistics.generators import basic_stats_generator

from airflow_hops.ml.statistics.arrow_lists import is_singletons
from airflow_hops.ml.statistics.stand_ins import in_place_of

_of_tfdv = basic_stats_generator._PartialCommonStats


class CommonStats(basic_stats_generator._PartialCommonStats):  # type: ignore[misc]
    """TFDV's counts of rows and values, which do not look at each row where there is one value in each."""

    __slots__ = ()

    def update(
        self, feature_path: Any, feature_array: pa.Array, feature_type: Any, make_sketch: Any, weights: Any = None
    ) -> None:
        """Takes in the lists of a batch."""
        if weights is not None or not is_singletons(feature_array):
            super().update(feature_path, feature_array, feature_type, make_sketch, weights)
            return
        # The type is checked, and the first batch makes what is counted.
        super().update(feature_path, feature_array[:0], feature_type, make_sketch)
        (stats,), rows = self.presence_and_valency_stats, len(feature_array)
        stats.num_non_missing += rows
        stats.total_num_values += rows
        stats.min_num_values, stats.max_num_values = min(stats.min_num_values, 1), max(stats.max_num_values, 1)
        if stats.num_values_summary is not None:
            stats.num_values_summary.AddValues(pa.array([1]), pa.array([rows]))


def counted_by_length() -> AbstractContextManager[None]:
    """Within its ``with`` block TFDV's generators count by :class:`CommonStats`."""
    return in_place_of(_of_tfdv, CommonStats, basic_stats_generator)
