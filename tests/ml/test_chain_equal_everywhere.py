"""From a raw file to transformed examples: equal bytes on one core and on several.

Contracts and tests of prepare and of statistics compare their engines.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest

from airflow_hops.core.sources.sources import Source
from airflow_hops.ml.features.preprocessing import bucketize, columns, one_hot, vocabulary_ids
from airflow_hops.ml.ingest import stage as ingest
from airflow_hops.ml.prepare import stage as prepare
from airflow_hops.ml.transform import stage as transform
from tests.ml.world import World

ROWS = 6000


def preprocess(features: Any, constants: Any) -> Any:
    """Puts rows into buckets whose bounds are the figures that sketches would get wrong."""
    quarters = bucketize(features["amount"], constants.quantiles("amount", 4))
    above = bucketize(features["share"], [constants.median("share")])
    city = vocabulary_ids(features["city"], constants.vocabulary("city", top_k=50))
    return {"numbers": columns([one_hot(quarters, 4), one_hot(above, 2)]), "city": city}


def write_raw(path: Path) -> Path:
    """Orders of floats that are all different, and of cities of which many are equally frequent."""
    random = np.random.default_rng(54)
    table = pa.table(
        {
            "id": [f"order-{number}" for number in random.permutation(ROWS)],
            "amount": random.lognormal(3, 2, ROWS) - 10,
            "city": [f"city {number}" for number in random.integers(0, 300, ROWS)],
            "late": random.integers(0, 2, ROWS),
        }
    )
    pa.csv.write_csv(table, path)
    return path


def chain(folder: Path, raw: Path, cores: int) -> dict[str, Any]:
    """Runs all stages on so many cores; returns the files of each artifact with their checksums."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    sys.modules["orders"] = SimpleNamespace(  # type: ignore[assignment]
        prepare=lambda connection, tables: connection.sql("SELECT *, amount / 7 AS share FROM orders"),
        preprocess=preprocess,
    )
    world = World(folder)
    tables = world.run(ingest, sources={"orders": Source.from_value("orders", str(raw)).to_dict()})
    how = {"prepare": "orders:prepare", "engine": "duckdb", "label": "late", "key": "id"}
    described = world.described(world.run(prepare, tables=tables, **how), processes=cores)
    transformed = world.run(transform, preprocess="orders:preprocess", **described)
    artifacts = (tables, *described.values(), transformed)
    return {artifact.kind: world.store.manifest(artifact.uri).files for artifact in artifacts}


@pytest.mark.scheduled(part="campaigns")
def test_cores_do_not_change_transformed_examples(own_process: Callable[..., Any], tmp_path: Path) -> None:
    # Each in a process of its own, as steps are: TensorFlow numbers the functions of a process.
    raw = write_raw(tmp_path / "orders.csv")
    several = own_process(chain, tmp_path, raw, 3)
    assert len(several["transformed_examples"]) > 4
    assert own_process(chain, tmp_path, raw, 1) == several
