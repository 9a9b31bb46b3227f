"""The operators of fleets: arguments, and DAG runs."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.errors import BadInput
from airflow_hops.core.models.model_record import ModelRecord, ServedVersion, write_record
from airflow_hops.core.store import ArtifactStore
from airflow_hops.extensions.fleet import FleetSkewOperator, SelectSegmentsOperator, TrainFleetOperator

DAGS = "tests/extensions/fleet/dags"
REPOSITORY = Path(__file__).parents[3]
train = partial(TrainFleetOperator, task_id="t", examples={}, segment="shop")
select = partial(SelectSegmentsOperator, task_id="t", model_name="m")
watch = partial(FleetSkewOperator, task_id="t", model_name="m")


@pytest.mark.parametrize(
    ("make", "arguments", "message"),
    [
        (train, {"model": "linaer"}, "model is 'linaer', .*; did you mean 'linear'"),
        (train, {"max_failed": 1.5}, "max_failed is 1.5, expected a share from 0 to 1"),
        (train, {"look_alikes": "merge"}, "look_alikes is 'merge', expected"),
        (train, {"only": ["a"]}, "only and skew require model_name"),
        (train, {"standard_errors": -1}, "standard_errors is -1, expected"),
        (select, {}, "expected either model or version"),
        (select, {"model": {}, "version": 3}, "expected either model or version"),
        (select, {"version": 3}, "version needs segments"),
        (watch, {"false_discoveries": 0}, "false_discoveries is 0, expected a number above 0 and below 1"),
    ],
)
def test_bad_arguments_are_named(make: Any, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        make(**arguments)


def test_example_is_a_dozen_tasks_however_many_segments() -> None:
    from airflow.dag_processing.dagbag import DagBag

    dags = DagBag(REPOSITORY / "dags" / "flights_fleet.py").dags
    assert dags.keys() == {"flights_fleet", "flights_fleet_watch"}
    assert all(len(dag.tasks) <= 15 and not any(task.is_mapped for task in dag.tasks) for dag in dags.values())


def rows_of(shop: int, rows: int, edition: int, shift: float = 0.0) -> pa.Table:
    generator = np.random.default_rng([shop, edition])
    price = generator.normal(10 + shift, 2, rows)
    label = (shop % 3) * price + generator.normal(size=rows)
    row = [f"{shop}-{edition}-{number}" for number in range(rows)]
    return pa.table({"row": row, "shop": [f"shop {shop}"] * rows, "price": price.astype(np.float32), "label": label})


@pytest.mark.runtime
def test_drifted_segments_are_trained_again_in_a_dag_run(
    run_dag: Any, tmp_path: Path, runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    extra = {
        "store": str(tmp_path / "store"),
        "runtime": str(runtime),
        "serving_capture_path": str(tmp_path / "captured"),
    }
    monkeypatch.setenv("AIRFLOW_CONN_HOPS_DEFAULT", json.dumps({"conn_type": "hops", "extra": extra}))
    store = ArtifactStore(extra["store"])
    raw = tmp_path / "raw"
    raw.mkdir()
    pq.write_table(pa.concat_tables([rows_of(shop, 250, 0) for shop in range(6)]), raw / "sales.parquet")
    done = run_dag("fleet", {"raw": str(raw)}, DAGS)
    tasks = {ti.task_id: ti for ti in done.get_task_instances()}
    assert {name: str(ti.state) for name, ti in tasks.items()} == dict.fromkeys(
        ("ingest", "prepare", "train"), "success"
    )
    fleet = Artifact.from_dict(tasks["train"].xcom_pull(task_ids="train"))
    assert fleet.metrics["segments"] == fleet.metrics["trained"] == 6

    skipped = run_dag("fleet_watch", {"raw": str(raw)}, DAGS)
    states = {ti.task_id: str(ti.state) for ti in skipped.get_task_instances()}
    assert states["watch"] == "failed"  # no DAG of this Airflow deploys such a model

    write_record(store, "fleet_shops", ModelRecord(champion=ServedVersion.of(fleet, 1, "", 100)))
    captured = tmp_path / "captured" / "fleet_shops"
    captured.mkdir(parents=True)
    asked = pa.concat_tables([rows_of(shop, 150, 1, 4.0 * (shop in (1, 4))) for shop in range(6)])
    columns = {f"input.{name}": asked[name] for name in ("shop", "price")}
    moment = pa.array([0] * len(asked), pa.timestamp("us", "UTC"))
    table = pa.table({**columns, "version": [1] * len(asked), "captured_at": moment})
    pq.write_table(table, captured / "20260101T000000.000000Z-v1-1.parquet")
    pq.write_table(pa.concat_tables([rows_of(shop, 250, 2) for shop in range(6)]), raw / "sales.parquet")
    done = run_dag("fleet_watch", {"raw": str(raw)}, DAGS)
    tasks = {ti.task_id: ti for ti in done.get_task_instances()}
    assert {str(ti.state) for ti in tasks.values()} == {"success"}
    comparison = tasks["watch"].xcom_pull(task_ids="watch")
    assert comparison["properties"]["segments"] == ["shop 1", "shop 4"]
    again = tasks["again"].xcom_pull(task_ids="again")
    assert again["metrics"]["trained"] == 2
    assert tasks["select"].xcom_pull(task_ids="select")["metrics"]["changed"] == 1
    (event,) = [each for each in asset_events("hops://fleet_watch/watch") if each.extra.get("segments")]
    assert event.extra["segments"] == ["shop 1", "shop 4"]


def asset_events(uri: str) -> list[Any]:
    from airflow.models.asset import AssetEvent, AssetModel
    from airflow.utils.session import create_session

    with create_session() as session:
        events = session.query(AssetEvent).join(AssetModel, AssetModel.id == AssetEvent.asset_id).filter_by(uri=uri)
        return events.all()
