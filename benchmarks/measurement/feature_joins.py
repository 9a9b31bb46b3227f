"""Point-in-time joins and online look-ups in an environment with Feast and DuckDB; prints one line of JSON."""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
from feast import Entity, FeatureStore, FeatureView, Field, FileSource, RepoConfig, ValueType
from feast.infra.contrib.grpc_server import get_grpc_server
from feast.types import Float64

from airflow_hops.extensions.feature_store.core.stored_features import StoredFeature
from airflow_hops.extensions.feature_store.ml.repository import select
from airflow_hops.extensions.feature_store.ml.stages.training_dataset import join
from airflow_hops.extensions.feature_store.serving.feature_server import FeatureServer

VIEWS, FEATURES, ENTITIES, MOMENTS = 5, 10, 10_000, 50
START = datetime(2024, 1, 1, tzinfo=UTC)


def make_store(folder: Path, online: dict[str, Any]) -> FeatureStore:
    """Writes and registers the views: values of each entity at 50 moments, in a store on DuckDB."""
    random = np.random.default_rng(1)
    entity = Entity(name="account", join_keys=["account_id"], value_type=ValueType.INT64)
    names = [f"value_{number}" for number in range(FEATURES)]
    views = []
    for number in range(VIEWS):
        path = folder / f"view_{number}.parquet"
        seconds = np.repeat(np.arange(MOMENTS), ENTITIES) * 86400 + random.integers(0, 86400, MOMENTS * ENTITIES)
        frame = pd.DataFrame({name: random.random(len(seconds)) for name in names})
        frame.insert(0, "account_id", np.tile(np.arange(ENTITIES), MOMENTS))
        frame["at"] = pd.Timestamp(START) + pd.to_timedelta(seconds, unit="s")
        frame.to_parquet(path)
        source = FileSource(name=f"file_{number}", path=str(path), timestamp_field="at")
        schema = [Field(name=name, dtype=Float64) for name in names]
        views.append(
            FeatureView(
                name=f"view_{number}", entities=[entity], schema=schema, source=source, ttl=timedelta(days=3650)
            )
        )
    store = open_store(folder, online, "duckdb")
    store.apply([entity, *views])
    return store


def open_store(folder: Path, online: dict[str, Any], engine: str) -> FeatureStore:
    config = RepoConfig(
        project="benchmark", provider="local", registry=str(folder / "registry.db"), online_store=online,
        offline_store={"type": engine}, entity_key_serialization_version=3,
    )  # fmt: skip
    return FeatureStore(config=config)


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    began = time.monotonic()
    result = work()
    return time.monotonic() - began, result


def joins(store: FeatureStore, folder: Path, rows: int) -> dict[str, float]:
    """Seconds of the join of one feature of each view: ours, Feast's with all views at once, and DuckDB's."""
    random = np.random.default_rng(2)
    times = int(START.timestamp()) + random.integers(0, MOMENTS * 86400, rows)
    spine = pd.DataFrame({"account_id": random.integers(0, ENTITIES, rows), "at": times})
    references = [f"view_{number}:value_0" for number in range(VIEWS)]
    ours_s, ours = timed(lambda: join(store, spine, select(store, references), "at"))
    entities = spine.assign(event_timestamp=pd.to_datetime(spine.pop("at"), unit="s", utc=True))
    feast_s, _ = timed(store.get_historical_features(entities, references, full_feature_names=True).to_df)
    database = duckdb.connect()
    database.execute("SET TimeZone = 'UTC'")
    spine = entities.assign(row=np.arange(rows))
    database.register("spine", spine)
    columns = ", ".join(f"v{n}.value_0 AS view_{n}__value_0" for n in range(VIEWS))
    asof = " ".join(
        f"ASOF LEFT JOIN '{folder}/view_{n}.parquet' v{n} "
        f"ON spine.account_id = v{n}.account_id AND spine.event_timestamp >= v{n}.at"
        for n in range(VIEWS)
    )
    duckdb_s, reference = timed(lambda: database.execute(f"SELECT row, {columns} FROM spine {asof} ORDER BY row").df())
    for column in ours.columns:
        assert np.array_equal(ours[column].to_numpy(), reference[column].to_numpy(), equal_nan=True), column
    return {"ours_s": ours_s, "feast_s": feast_s, "duckdb_s": duckdb_s}


def seconds_of(look_up: Callable[[np.ndarray], object], requests: int) -> dict[str, float]:
    """Seconds of look-ups of 10 keys."""
    random = np.random.default_rng(3)
    times = [timed(lambda: look_up(random.integers(0, ENTITIES, 10)))[0] for _ in range(requests)]
    return {"median_s": float(np.median(times)), "p99_s": float(np.quantile(times, 0.99))}


def online(store: FeatureStore, requests: int) -> dict[str, dict[str, float]]:
    """Seconds of look-ups of 50 features: by Feast in this process, and by its feature server."""
    store.materialize(START, START + timedelta(days=MOMENTS + 1))
    columns = [(f"view_{view}", f"value_{feature}") for view in range(VIEWS) for feature in range(FEATURES)]
    references = [f"{view}:{feature}" for view, feature in columns]

    def feast(keys: np.ndarray) -> object:
        rows = [{"account_id": key} for key in keys.tolist()]
        return store.get_online_features(references, rows, full_feature_names=True).to_dict()

    key = {"account_id": "account_id"}
    origins = [StoredFeature(view, feature, "Float64", key, {"account_id": "INT64"}) for view, feature in columns]
    with socket.create_server(("127.0.0.1", 0)) as holder:
        address = f"127.0.0.1:{holder.getsockname()[1]}"
    server = get_grpc_server(address, store, max_workers=10, registry_ttl_sec=3600)
    server.start()
    client = FeatureServer(address, 5.0)
    lookups = seconds_of(lambda keys: client.read(origins, {"account_id": keys}, 10), requests)
    server.stop(None)
    return {"online": seconds_of(feast, requests), "lookups": lookups}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--redis", required=True, help="host:port of a Redis")
    options = parser.parse_args()
    output, sys.stdout = sys.stdout, sys.stderr
    redis = {"type": "redis", "connection_string": options.redis}
    store = make_store(options.folder, redis)
    figures = {"joins": joins(store, options.folder, options.rows), **online(store, options.requests)}
    print(json.dumps(figures), file=output, flush=True)
    os._exit(0)  # the feature server's timer, which refreshes the registry, has no end


if __name__ == "__main__":
    main()
