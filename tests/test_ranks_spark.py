"""Ranks on Spark's executors, as a task's connection asks for them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_hops.core.contract.artifacts import Artifact

pytestmark = [pytest.mark.runtime, pytest.mark.spark]
REPOSITORY = Path(__file__).resolve().parent.parent
STEPS = (str(REPOSITORY / "tests" / "steps"),)


def test_training_on_spark_gives_the_weights_of_local_ranks(
    shared_run_step: Any, warm_launcher: Any, run_dag: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__HOPS__STORE", shared_run_step.store.root)
    references = {kind: Artifact(f"file:///store/{kind}", kind, "0" * 64) for kind in ("statistics", "schema")}
    examples = shared_run_step(
        "transformed_examples:write",
        params={"rows": {"train": [300, 3], "eval": [201]}},
        kind="transformed_examples",
        inputs=references,
        code_paths=STEPS,
        launcher=warm_launcher,
    )
    local = shared_run_step(
        "airflow_hops.ml.stages.train:run",
        params={"train": "train_ranks_model:train"},
        inputs={"examples": examples},
        kind="model",
        code_paths=(str(REPOSITORY / "tests" / "dags"),),
        launcher=warm_launcher,
    )
    run = run_dag("train_ranks", {"examples": examples.to_dict(), "ranks_conn_id": "spark_local"})
    assert run.state == "success"
    artifact = Artifact.from_dict(run.get_task_instance("train").xcom_pull(task_ids="train"))
    folders = [Path(result.uri.removeprefix("file://")) for result in (local, artifact)]
    expected, result = (json.loads((folder / "training.json").read_text()) for folder in folders)
    assert result["checksum"] == expected["checksum"]
    assert result["rows"] == expected["rows"] == {"train": 303, "eval": 201}
    files = [
        {path.relative_to(folder).as_posix() for path in folder.glob("[!t]*/**/*") if path.is_file()}
        for folder in folders
    ]
    assert files[0] == files[1]
