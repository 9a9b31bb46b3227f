"""Compares the feature values that were served, or trained on, with those of a point-in-time join."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from feast import FeatureStore

from airflow_hops.core.contract.artifacts import Artifact, BadInput, RowCounts
from airflow_hops.core.contract.capture_layout import name_time
from airflow_hops.core.contract.properties import ExamplesProperties
from airflow_hops.core.contract.times import window_time
from airflow_hops.core.parquet_writer import write_parquet
from airflow_hops.extensions.feature_store.core.stored_features import (
    AUDIT_NAME,
    AuditedColumn,
    AuditOptions,
    AuditProperties,
    FeatureAudit,
    StoredFeature,
    StoredFeatures,
    value_time_input,
)
from airflow_hops.extensions.feature_store.ml.audit import History, describe, equal, find_causes, more_than
from airflow_hops.extensions.feature_store.ml.point_in_time import as_seconds, is_time, join
from airflow_hops.extensions.feature_store.ml.repository import ViewFeatures, check_definitions, open_repository, select
from airflow_hops.extensions.feature_store.ml.view_rows import read_rows
from airflow_hops.ml.monitoring.captured.snapshot import captured_requests
from airflow_hops.ml.readers import scan
from airflow_hops.ml.readers.artifact_files import example_files
from airflow_hops.ml.step.context import StepContext

log = logging.getLogger(__name__)

_MOMENT = "hops_moment"
_MOST_DIFFERENCES = 10_000


def run(context: StepContext, *, repository: str, **options: Any) -> Artifact:
    """Writes ``audit.json`` and ``differences.parquet``.

    Args:
        context: Step with the input ``dataset``, examples of the training_dataset stage, and optionally
            ``definitions`` and ``captured``, a snapshot of captured rows.
        repository: The repository's folder.
        options: Fields of :class:`~airflow_hops.extensions.feature_store.core.stored_features.AuditOptions`.

    Raises:
        BadInput: the dataset has no stored features, nothing was captured, or captured rows lack a key.
    """
    values = AuditOptions(**options)
    dataset = context.input("dataset")
    if "stored_features" not in dataset.properties:
        raise BadInput("dataset is not the output of TrainingDatasetOperator: no column is from a feature store")
    stored = StoredFeatures.from_dict(dataset.properties["stored_features"])
    rows = _trained(context, stored) if values.model_name is None else _served(context, stored, values)
    if not len(rows):
        raise BadInput(f"no row of {values.model_name or 'the dataset'} is in the window")
    with open_repository(repository) as (store, _):
        check_definitions(context, store)
        audited, differences = [], []
        for each, columns in _by_view(store, stored):
            figures, unequal = _audit_view(store, rows, each, columns, values)
            audited += figures
            differences += unequal
            context.progress(len(audited) / len(stored.columns), f"view {each.view.name} is audited")
    alarms = [column.column for column in audited if column.alarm]
    for column in audited:
        if column.differing:
            log.log(
                logging.WARNING if column.alarm else logging.INFO,
                "%s (%s:%s): %d of %d rows differ: %s",
                column.column, column.view, column.feature, column.differing, column.rows, dict(column.causes),
            )  # fmt: skip
    audit = FeatureAudit(of=values.model_name or dataset.uri, rows=len(rows), columns=tuple(audited))
    with context.output() as writer:
        (writer.path / AUDIT_NAME).write_text(json.dumps(audit.to_dict(), indent=1))
        listed = pd.concat(differences, ignore_index=True) if differences else pd.DataFrame()
        write_parquet(pa.Table.from_pandas(listed[:_MOST_DIFFERENCES]), writer.path / "differences.parquet")
        return writer.commit(
            rows={"audited": RowCounts(len(rows), len(rows))},
            metrics={f"differing {column.column}": column.differing for column in audited},
            properties=AuditProperties(
                verdict="differences" if alarms else "equal",
                model_name=values.model_name,
                rows=len(rows),
                alarms={column.column: dict(column.causes) for column in audited if column.alarm},
            ).to_dict(),
        )


def _by_view(
    store: FeatureStore, stored: StoredFeatures
) -> list[tuple[ViewFeatures, dict[str, tuple[str, StoredFeature]]]]:
    """Returns, for each view and its keys' columns, the columns by feature."""
    groups: dict[tuple[str, tuple[tuple[str, str], ...]], dict[str, tuple[str, StoredFeature]]] = {}
    for column, origin in stored.columns.items():
        groups.setdefault(origin.group, {})[origin.feature] = (column, origin)
    result = []
    for (view, keys), columns in groups.items():
        (selected,) = select(store, [f"{view}:{feature}" for feature in columns])
        result.append((ViewFeatures(selected.view, selected.features, dict(keys), view), columns))
    return result


def _trained(context: StepContext, stored: StoredFeatures) -> pd.DataFrame:
    """Returns the rows of the dataset."""
    properties = ExamplesProperties.of(context.input("dataset"))
    folder = context.local("dataset")
    files = [file for split in properties.splits for file in example_files(folder, split)]
    rows = scan.table(files).to_pandas()
    assert properties.time is not None
    return _checked(rows.assign(**{_MOMENT: rows[properties.time]}), stored, "the dataset", "set drop_keys=False")


def _served(context: StepContext, stored: StoredFeatures, values: AuditOptions) -> pd.DataFrame:
    """Returns a sample of the captured rows in the window, by their inputs' names."""
    assert values.model_name is not None
    captured = captured_requests(context, values.model_name)
    start = window_time("window_start", values.window_start)
    end = window_time("window_end", values.window_end)
    frames = []
    for name in captured.names():
        if start is not None and name < name_time(start):
            continue  # a file appears after its rows were captured
        rows = captured.table(name).to_pandas()
        if start is not None:
            rows = rows[rows["captured_at"] >= start]
        if end is not None:
            rows = rows[rows["captured_at"] < end]
        frames.append(rows)
    if not frames:
        raise BadInput(
            f"no request of model {values.model_name!r} was captured in the window; if the server sends them to a "
            "topic, ingest the topic and give the output of IngestOperator as captured"
        )
    rows = pd.concat(frames, ignore_index=True)
    if len(rows) > values.max_rows:
        rows = rows.sample(values.max_rows, random_state=0)
    inputs = {name: name.removeprefix("input.") for name in rows.columns if name.startswith("input.")}
    identity = rows[["request_id", "row", "version"]]
    moments = rows["captured_at"].astype("datetime64[ns, UTC]").astype("int64") // 1_000_000_000
    rows = rows[list(inputs)].rename(columns=inputs).join(identity.add_prefix("captured_"))
    return _checked(
        rows.assign(**{_MOMENT: moments}).reset_index(drop=True), stored, "captured rows",
        "deploy the model with the dataset's features, so that requests hold the keys",
    )  # fmt: skip


def _checked(rows: pd.DataFrame, stored: StoredFeatures, whose: str, advice: str) -> pd.DataFrame:
    needed = {*stored.columns, *(column for origin in stored.columns.values() for column in origin.keys.values())}
    if missing := sorted(needed - set(rows.columns)):
        raise BadInput(f"{whose} lack the column {missing[0]!r}, without which features cannot be audited; {advice}")
    return rows


def _audit_view(
    store: FeatureStore,
    rows: pd.DataFrame,
    each: ViewFeatures,
    columns: Mapping[str, tuple[str, StoredFeature]],
    values: AuditOptions,
) -> tuple[list[AuditedColumn], list[pd.DataFrame]]:
    expected = join(store, rows, [each], _MOMENT)
    earlier = rows.assign(**{_MOMENT: rows[_MOMENT] - int(values.delay_s)})
    before = join(store, earlier, [each], _MOMENT) if values.delay_s else expected
    history: History | None = None
    audited, differences = [], []
    for feature, (column, origin) in columns.items():
        value_times = rows.get(value_time_input(column), pd.Series(np.nan, index=rows.index))
        used = rows[column].where(value_times != 0)  # the default was used, as there was no value
        right = expected[f"{each.prefix}__{feature}"]
        differs = ~(equal(used, right) | equal(used, before[f"{each.prefix}__{feature}"]))
        causes = pd.Series(dtype=object)
        if differs.any():
            part = rows[differs]
            keys = {name: key for key, name in each.join_keys.items()}
            looked_up = value_times[differs]
            known = looked_up > 0
            # NaN is replaced first: pandas sometimes reports an overflow for it.
            looked_up_us = (looked_up.where(known, 0) * 1e6).astype("int64")
            where = part[[*keys]].rename(columns=keys).assign(
                moment=pd.to_datetime(part[_MOMENT], unit="s", utc=True),
                value_at=pd.to_datetime(looked_up_us, unit="us", utc=True).where(known),
            )  # fmt: skip
            history = history or _history(store, rows, each, columns)
            causes = find_causes(where, used[differs], right[differs], history, feature)
            identity = part.filter(like="captured_")
            differences.append(
                identity.assign(
                    column=column,
                    keys=where[list(keys.values())].astype(str).agg("/".join, axis=1),
                    moment=where["moment"],
                    used=part[column].astype(str),
                    expected=right[differs].astype(str),
                    value_at=where["value_at"],
                    cause=causes,
                )
            )
        count = int(differs.sum())
        p_value = more_than(count, len(rows), values.max_differing)
        audited.append(
            AuditedColumn(
                column=column,
                view=origin.view,
                feature=feature,
                rows=len(rows),
                differing=count,
                causes=dict(Counter(causes)),
                p_value=p_value,
                alarm=p_value < values.alpha,
                used=describe(used),
                expected=describe(right),
            )
        )
    return audited, differences


def _history(
    store: FeatureStore, rows: pd.DataFrame, each: ViewFeatures, columns: Mapping[str, tuple[str, StoredFeature]]
) -> History:
    """Reads the values of a view, of the rows' entities, from the offline store."""
    start, end = datetime(1970, 1, 2, tzinfo=UTC), datetime.now(UTC)
    history = read_rows(store, each.view, list(columns), start, end)
    for feature, (_, origin) in columns.items():
        if is_time(origin.dtype):
            history[feature] = as_seconds(history[feature])
    names: Sequence[str] = list(each.join_keys)
    wanted = rows[[each.join_keys[key] for key in names]].drop_duplicates().set_axis(list(names), axis=1)
    ttls = {origin.ttl_s for _, origin in columns.values()}
    return History(history.merge(wanted, on=list(names)), tuple(names), ttls.pop())
