"""Tables with neither key nor time, as scikit-learn brings them, through the whole pipeline, Spark and the watch."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from served_models import Pipeline

from airflow_hops.core.artifacts.artifact import Artifact

pytestmark = [pytest.mark.runtime, pytest.mark.spark]

MEASURES = (
    "radius", "texture", "perimeter", "area", "smoothness", "compactness", "concavity", "concave points", "symmetry",
    "fractal dimension",
)  # fmt: skip
AWKWARD = ("a", "a.b", "a/b", "AREA", "area", "1st", "class", "self", 'Größe, in "cm²"', "it's `so`; {x}=\t:0")
CANCER = [*(f"mean {measure}" for measure in MEASURES), *AWKWARD, *(f"worst {measure}" for measure in MEASURES)]


@pytest.fixture
def table(runtime: Path, tmp_path: Path) -> Path:
    """scikit-learn's table of tumours as CSV; the last column is ``target``."""
    name = "breast_cancer.csv"
    result = next(runtime.glob(f"lib/python3*/site-packages/sklearn/datasets/data/{name}"))
    rows = list(csv.reader(result.open()))[1:]
    with (tmp_path / name).open("w", newline="") as file:
        csv.writer(file).writerows([[*CANCER, "target"], *rows])
    return tmp_path / name


@pytest.fixture
def pipeline_connection(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> Pipeline:
    """The pipeline's store and model server, as the default connection."""
    extra = {**pipeline.server.services, "tracking_uri": pipeline.tracking_uri, "store": pipeline.store.root}
    connection = {"conn_type": "hops", "host": "127.0.0.1", "port": int(extra.pop("serving_port")), "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_HOPS_DEFAULT", json.dumps(connection))
    return pipeline


def states(run: Any) -> dict[str, str]:
    return {ti.task_id: str(ti.state) for ti in run.get_task_instances()}


def test_table_without_key_and_time_is_deployed_and_monitored(
    pipeline_connection: Pipeline, run_dag: Any, table: Path
) -> None:
    pipeline, path = pipeline_connection, table
    run = run_dag("tables", {"table": str(path), "model_name": pipeline.name})
    assert set(states(run).values()) == {"success"}, states(run)
    returned = {ti.task_id: ti.xcom_pull(task_ids=ti.task_id) for ti in run.get_task_instances()}
    examples = Artifact.from_dict(returned["prepare"])
    assert (examples.properties["key"], examples.properties["time"]) == (None, None)
    assert examples.rows["rows"].rows_out == examples.rows["train"].rows_out + examples.rows["eval"].rows_out == 569
    assert 0.12 < examples.rows["eval"].rows_out / 569 < 0.28
    evaluation = Artifact.from_dict(returned["evaluate"])
    assert list(evaluation.rows) == ["eval"] and evaluation.metrics["eval_auc"] > 0.95

    used = [name for name in CANCER if name != "worst fractal dimension"]
    assert returned["train"]["properties"]["features"] == used
    rows = [dict(zip([*CANCER, "target"], line, strict=True)) for line in list(csv.reader(path.open()))[1:101]]
    asked = {"instances": [{name: float(row[name]) for name in used} for row in rows]}
    answer = pipeline.server.post(f"/v1/models/{pipeline.name}:predict", asked)
    right = sum((p > 0.5) == (row["target"] == "1") for p, row in zip(answer["predictions"], rows, strict=True))
    assert right > 90
    every = {name: float(value) for name, value in rows[0].items() if name != "target"}
    status, _ = pipeline.server.call(f"/v1/models/{pipeline.name}:predict", {"instances": [every]})
    assert status == 400

    assert pipeline.server.post("/v1/capture:flush", {})["flushed"]
    run = run_dag("tables_monitoring", {"model_name": pipeline.name})
    assert states(run) == {"skew": "success"}
    skew = run.get_task_instances()[0].xcom_pull(task_ids="skew")
    assert skew["rows"]["captured"]["rows_in"] == 100
    assert set(skew["properties"]["scores"]) == set(used)
