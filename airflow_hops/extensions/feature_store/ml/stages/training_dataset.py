"""Adds the feature store's values at the time of each example."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pyarrow as pa

from airflow_hops.core.artifacts.artifact import Artifact, RowCounts
from airflow_hops.core.artifacts.properties import ExamplesProperties
from airflow_hops.core.errors import BadInput
from airflow_hops.core.parquet_writer import write_parquet
from airflow_hops.extensions.feature_store.core.stored_features import StoredFeature, StoredFeatures
from airflow_hops.extensions.feature_store.ml.point_in_time import as_examples_column, join, without_created
from airflow_hops.extensions.feature_store.ml.repository import (
    ViewFeatures,
    check_definitions,
    definitions_of,
    key_types,
    open_repository,
    select,
    ttl_seconds,
)
from airflow_hops.ml.readers import scan
from airflow_hops.ml.readers.artifact_files import example_files
from airflow_hops.ml.step.context import StepContext

log = logging.getLogger(__name__)


def run(
    context: StepContext,
    *,
    repository: str,
    features: Sequence[str] | str,
    full_names: bool = False,
    as_created: bool = True,
    drop_keys: bool = True,
) -> Artifact:
    """Writes ``<split>/*.parquet``, with the rows of the input in their order.

    Parameters are those of ``TrainingDatasetOperator``. Inputs are ``examples`` and, optionally, ``definitions``.

    Raises:
        BadInput: the examples have no time, a name is taken, or a feature is unknown or of a type that examples cannot
            have.
    """
    examples = context.input("examples")
    properties = ExamplesProperties.of(examples)
    if properties.time is None:
        raise BadInput(
            "the examples have no time, and features are joined as of a row's time; set PrepareOperator's time"
        )
    folder = context.store.local(examples)
    files = [(split, file) for split in properties.splits for file in example_files(folder, split)]
    tables = [scan.table([file]) for _, file in files]
    with open_repository(repository) as (store, _):
        check_definitions(context, store)
        selected = select(store, features)
        names = _names(selected, full_names, tables[0].column_names)
        keys = list(dict.fromkeys(column for each in selected for column in each.join_keys.values()))
        rows = pd.concat([_frame(table, [*keys, properties.time]) for table in tables], ignore_index=True)
        context.progress(0.1, f"joining {len(rows)} rows with {len(selected)} views")
        joined = join(
            store,
            rows,
            selected,
            properties.time,
            as_created=as_created,
            on_view=lambda done: context.progress(0.1 + 0.8 * done / len(selected), f"{done} views are joined"),
        )
        definitions = definitions_of(store)
    late = without_created(selected)
    if as_created and late:
        log.warning(
            "%s: no created timestamp in the source, so values that arrived after an example's time may be in it",
            ", ".join(late),
        )
    columns: dict[str, StoredFeature] = {}
    arrays: dict[str, pa.Array] = {}
    for each in selected:
        types = {field.name: str(field.dtype) for field in each.view.features}
        for feature in each.features:
            column, reference = names[each.prefix, feature], f"{each.prefix}:{feature}"
            arrays[column] = as_examples_column(joined[f"{each.prefix}__{feature}"], types[feature], reference)
            columns[column] = StoredFeature(
                each.view.name,
                feature,
                types[feature],
                keys=dict(each.join_keys),
                key_types=key_types(each.view),
                ttl_s=ttl_seconds(each.view),
            )
    roles = {properties.key, properties.time, properties.label, properties.weight, *(properties.more_labels or {})}
    dropped = [key for key in keys if drop_keys and key not in roles]
    counts: dict[str, int] = {}
    with context.output() as writer:
        first = 0
        for (split, file), table in zip(files, tables, strict=True):
            for column, values in arrays.items():
                table = table.append_column(column, values.slice(first, table.num_rows))
            _write(table.drop_columns(dropped), writer.path / split / file.name)
            first += table.num_rows
            counts[split] = counts.get(split, 0) + table.num_rows
        missing = {column: values.null_count / max(len(values), 1) for column, values in arrays.items()}
        for column, share in missing.items():
            log.info("%s: %.1f%% of the rows have a value", column, 100 * (1 - share))
        origin = StoredFeatures(
            definitions.project, definitions.fingerprint, columns=columns, without_created=tuple(late) or None
        )
        return writer.commit(
            rows={split: RowCounts(count, count) for split, count in counts.items()},
            metrics={f"missing {column}": round(share, 6) for column, share in missing.items()},
            properties={**examples.properties, "stored_features": origin.to_dict()},
        )


def _names(selected: Sequence[ViewFeatures], full: bool, taken: Sequence[str]) -> dict[tuple[str, str], str]:
    """Returns the column's name by view and feature."""
    names: dict[tuple[str, str], str] = {}
    for each in selected:
        for feature in each.features:
            column = f"{each.prefix}__{feature}" if full else feature
            if column in taken or column in names.values():
                whose = "the examples have" if column in taken else "another view has"
                raise BadInput(
                    f"features has '{each.prefix}:{feature}', but {whose} a column {column!r}, too; set "
                    "full_names=True, or leave one out"
                )
            names[each.prefix, feature] = column
    return names


def _frame(table: pa.Table, columns: Sequence[str]) -> pd.DataFrame:
    if missing := [column for column in columns if column not in table.column_names]:
        raise BadInput(
            f"the views need the key {missing[0]!r}, which the examples do not have; they have "
            f"{', '.join(table.column_names)}"
        )
    return table.select(list(dict.fromkeys(columns))).to_pandas()


def _write(table: pa.Table, path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    write_parquet(table, path)
