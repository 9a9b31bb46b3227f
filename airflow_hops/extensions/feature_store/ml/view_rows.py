"""The rows of a view in the offline store, and their statistics."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime

import numpy as np
import pandas as pd
from feast import FeatureStore, FeatureView

from airflow_hops.extensions.feature_store.core.stored_features import FeatureSummary, ViewStatistics

log = logging.getLogger(__name__)

_QUANTILES = (0.05, 0.5, 0.95)


def read_rows(
    store: FeatureStore, view: FeatureView, features: Sequence[str], start: datetime, end: datetime
) -> pd.DataFrame:
    """Reads all rows of a view whose event is from ``start`` to ``end``, both included, into memory.

    Returns:
        Columns of the join keys, the features, and ``event_at`` and ``created_at`` (UTC timestamps); the latter is the
        former if the source has no created timestamp.
    """
    source = view.batch_source
    columns = {name: column for column, name in source.field_mapping.items()}
    wanted = {name: columns.get(name, name) for name in [*view.join_keys, *features]}
    job = store._get_provider().offline_store.pull_all_from_table_or_query(
        config=store.config,
        data_source=source,
        join_key_columns=[wanted[key] for key in view.join_keys],
        feature_name_columns=[wanted[feature] for feature in features],
        timestamp_field=source.timestamp_field,
        created_timestamp_column=source.created_timestamp_column,
        start_date=start,
        end_date=end,
    )
    table = job.to_df()
    event_at = pd.to_datetime(table[source.timestamp_field], utc=True)
    created = source.created_timestamp_column
    return pd.DataFrame(
        {name: table[column] for name, column in wanted.items()}
        | {"event_at": event_at, "created_at": pd.to_datetime(table[created], utc=True) if created else event_at}
    )


def window_statistics(store: FeatureStore, view: FeatureView, start: datetime, end: datetime) -> ViewStatistics:
    """Returns the statistics of a view's rows from ``start`` until before ``end``."""
    features = [field.name for field in view.features]
    rows = read_rows(store, view, features, start, end)
    rows = rows[rows["event_at"] < end]
    if repeated := int(rows.duplicated([*view.join_keys, "event_at", "created_at"]).sum()):
        log.warning(
            "%s: %d rows share key, event time and created time with another row; the engine chooses which one counts",
            view.name,
            repeated,
        )
    return ViewStatistics(len(rows), {feature: summarize(rows[feature]) for feature in features})


def summarize(values: pd.Series) -> FeatureSummary:
    """Returns the statistics of a feature's values."""
    known = values.dropna()
    missing = len(values) - len(known)
    if len(known) and np.ndim(known.iloc[0]):
        return FeatureSummary(missing)
    summary = FeatureSummary(missing, distinct=int(known.nunique()))
    if not pd.api.types.is_numeric_dtype(known) or pd.api.types.is_bool_dtype(known):
        return summary
    numbers = known.to_numpy("float64")
    numbers = numbers[np.isfinite(numbers)]
    if not len(numbers):
        return summary
    quantiles = tuple(float(value) for value in np.quantile(numbers, _QUANTILES))
    return FeatureSummary(missing, summary.distinct, float(numbers.mean()), float(numbers.std()), quantiles)
