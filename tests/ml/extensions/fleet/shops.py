"""Examples of shops whose label depends on price, footfall and weekday, in each shop in its own way."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_hops.core.artifacts.artifact import Artifact, Producer, RowCounts
from airflow_hops.core.store import ArtifactStore
from airflow_hops.extensions.fleet.ml import stage
from airflow_hops.extensions.fleet.ml.fleet_files import OpenFleet
from airflow_hops.ml.models.loaded_models import LoadedModel, model_folder
from tests.ml.conftest import stage_runner

DAYS = np.array(["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"], object)


def rows_of(
    shop: str, rows: int, *, own: float = 1.0, seed: int = 0, problem: str = "regression", shift: float = 0.0
) -> pa.Table:
    """Rows of a shop; `own` is how far its weights are from those of all, `shift` that of its prices."""
    weights = np.array([1.0, -0.5, 0.3]) + own * np.random.default_rng([*shop.encode()]).normal(size=3)
    generator = np.random.default_rng([seed, *shop.encode()])
    price = (10 + shift + 2 * generator.normal(size=rows)).astype(np.float32)
    visits = generator.poisson(50, rows)
    day = DAYS[generator.integers(0, 7, rows)]
    score = weights[0] * (price - 10) / 2 + weights[1] * (visits - 50) / 7 + weights[2] * (day == "Sun")
    noisy = score + generator.normal(size=rows)
    label: Any = noisy.astype(np.float64)
    if problem == "binary":
        label = (noisy > 0).astype(np.int64)
    elif problem == "multiclass":
        label = np.digitize(noisy, [-1.0, 1.0]).astype(np.int64)
    region = np.full(rows, f"region {sum(shop.encode()) % 3}", object)
    columns = {"shop": [shop] * rows, "price": price, "visits": visits, "day": day, "region": region, "label": label}
    return pa.table(columns)


def tables(shops: Sequence[tuple[str, int]], *, held_rows: int = 0, **options: Any) -> dict[str, pa.Table]:
    """Splits `train`, shuffled, and `eval` of shops with so many training rows; ``held_rows`` of each, or a quarter."""
    train = pa.concat_tables([rows_of(shop, rows, **options) for shop, rows in shops])
    seed = options.pop("seed", 0) + 1
    held = pa.concat_tables(
        [rows_of(shop, held_rows or max(rows // 4, 1), seed=1000 + seed, **options) for shop, rows in shops]
    )
    order = np.random.default_rng(seed).permutation(len(train))
    return {"train": train.take(pa.array(order)), "eval": held}


def write(
    store: ArtifactStore,
    splits: dict[str, pa.Table],
    *,
    run_id: str = "fixture",
    problem: str = "regression",
    **more: Any,
) -> Artifact:
    """Publishes `examples` of these splits, two files each; ``more`` are further properties."""
    classes = {"regression": None, "binary": ["0", "1"], "multiclass": ["low", "middle", "high"]}[problem]
    with store.create(
        store.uri("tests", run_id, "prepare", "examples"), "examples", Producer("tests", run_id, "prepare")
    ) as writer:
        for name, table in splits.items():
            (writer.path / name).mkdir()
            half = len(table) // 2
            for number, part in enumerate((table.slice(0, half), table.slice(half))):
                pq.write_table(part, writer.path / name / f"part-{number:05}.parquet", row_group_size=5000)
        properties = {"label": "label", "problem": problem, "splits": list(splits), "window": None, **more}
        rows = {name: RowCounts(len(table), len(table)) for name, table in splits.items()}
        return writer.commit(rows=rows, properties={**properties, **({"classes": classes} if classes else {})})


def write_schema(store: ArtifactStore, text: str, run_id: str = "fixture") -> Artifact:
    with store.create(store.uri("tests", run_id, "schema", "schema"), "schema", Producer()) as writer:
        (writer.path / "schema.pbtxt").write_text(text)
        return writer.commit()


def replaced(table: pa.Table, name: str, values: Any) -> pa.Table:
    """The table with other values in a column."""
    return table.set_column(table.column_names.index(name), name, values)


def models(fleet: OpenFleet, segments: Iterable[str] | None = None) -> dict[str, bytes]:
    """The packed models of these segments, or of all."""
    return {segment: fleet.segment(segment)[1] for segment in segments or fleet.entries}


def answers(store: ArtifactStore, fleet: Artifact, rows: pa.Table, output: str) -> Any:
    """The fleet's answers for rows, by the model server's code."""
    model = LoadedModel(model_folder(store, fleet), "serving_default")
    columns = {name: rows[name].to_numpy() for name in model.inputs}
    encoded = {n: np.array([v.encode() for v in c], object) if c.dtype == object else c for n, c in columns.items()}
    return np.asarray(model.run(encoded)[output], np.float64)


def train_here(store: str, folder: Path, **options: Any) -> Any:
    """Runs the stage, on two cores if nothing else is set."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_SUBMIT_ARGS", os.environ.get("PYSPARK_SUBMIT_ARGS", "--master local[2] pyspark-shell"))
        return stage_runner(ArtifactStore(store), folder)(stage.run, kind="model", task_id="train", **options)
