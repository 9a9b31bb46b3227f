"""Tables with neither key nor time, as scikit-learn brings them, through the whole pipeline, Spark and the watch."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
from served_models import Pipeline
from world import results, states

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


def test_table_without_key_and_time_is_deployed_and_monitored(
    pipeline: Pipeline, run_dag: Any, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline.connect(monkeypatch)
    run = run_dag("tables", {"table": str(table), "model_name": pipeline.name})
    assert set(states(run).values()) == {"success"}, states(run)
    returned = results(run)
    examples = Artifact.from_dict(returned["prepare"])
    assert (examples.properties["key"], examples.properties["time"]) == (None, None)
    assert examples.rows["rows"].rows_out == examples.rows["train"].rows_out + examples.rows["eval"].rows_out == 569
    assert 0.12 < examples.rows["eval"].rows_out / 569 < 0.28
    evaluation = Artifact.from_dict(returned["evaluate"])
    assert list(evaluation.rows) == ["eval"] and evaluation.metrics["eval_auc"] > 0.95

    used = [name for name in CANCER if name != "worst fractal dimension"]
    assert returned["train"]["properties"]["features"] == used
    rows = [dict(zip([*CANCER, "target"], line, strict=True)) for line in list(csv.reader(table.open()))[1:101]]
    asked = {"instances": [{name: float(row[name]) for name in used} for row in rows]}
    answer = pipeline.server.post(f"/v1/models/{pipeline.name}:predict", asked)
    right = sum((p > 0.5) == (row["target"] == "1") for p, row in zip(answer["predictions"], rows, strict=True))
    assert right > 90
    every = {name: float(value) for name, value in rows[0].items() if name != "target"}
    status, _ = pipeline.server.call(f"/v1/models/{pipeline.name}:predict", {"instances": [every]})
    assert status == 400

    pipeline.server.flush()
    run = run_dag("tables_monitoring", {"model_name": pipeline.name})
    assert states(run) == {"skew": "success"}
    skew = results(run)["skew"]
    assert skew["rows"]["captured"]["rows_in"] == 100
    assert set(skew["properties"]["scores"]) == set(used)
