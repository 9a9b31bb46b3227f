"""MLflow's run of a training: one for all of its tries, with parameters, metrics, code, environment and lineage."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ask_mlflow
import pytest

from airflow_hops.core.artifacts.artifact import Artifact, Producer
from airflow_hops.core.errors import HopsError
from airflow_hops.core.training.record import read_curves, read_training
from airflow_hops.ml.tracking import ModelRegistry, log_evaluation
from tests.ml.training.trainings import Trainings, read_events

SECRETS = {
    "password": "hunter2",
    "source": {"uri": "https://ann:PW-x@h/x?sig=s1g", "token": "t0ken", "args": ["--api-key", "k3y", "secret=h1dden"]},
}


@pytest.fixture(scope="module")
def tracked(trainings: Trainings, examples: Artifact, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A training whose rank is killed after its third epoch, when a checkpoint is whole, its retry, and its model."""
    folder = tmp_path_factory.mktemp("tracking")
    tracking_uri, store = f"sqlite:///{folder}/mlflow.db", trainings.store
    arguments = {"epochs": 3, "np": 1, "lr": 0.02, "accident_after": 3, "rank": 0, "marker": str(folder / "marker")}
    arguments |= {"run_id": "tracked", "services": {"tracking_uri": tracking_uri}, **SECRETS}

    def run() -> Any:
        (each,) = ask_mlflow.runs(None, tracking_uri, "tests")
        return each

    with pytest.raises(HopsError, match="was ended by SIGKILL") as failure:
        trainings("training_functions:train", examples, **arguments)
    failed = run()
    failed_record = read_training(store, "tests", failed["tags"]["hops.training"])
    model = trainings("training_functions:train", examples, **arguments)
    lines, finished = list(trainings.lines), run()
    evaluation = Artifact("file:///evaluation", "evaluation", "f", {"eval_auc": 0.6}, properties={"blessed": False})
    log_evaluation(store, tracking_uri, model, store.manifest(model.uri), evaluation)
    evaluated, deploy = run(), Producer("tests", "tracked", "deploy")
    registered = ModelRegistry(tracking_uri, "m").register(model, deploy, evaluation=evaluation)
    return SimpleNamespace(
        model=model,
        failure=failure.value,
        lines=lines,
        failed=failed,
        failed_record=failed_record,
        record=read_training(store, "tests", failed["tags"]["hops.training"]),
        curves=read_curves(store, "tests", failed["tags"]["hops.training"]).curves,
        finished=finished,
        evaluated=evaluated,
        registered=registered,
        tracking_uri=tracking_uri,
        run=run(),
    )


def test_retry_continues_the_run_of_the_previous_try(tracked: Any) -> None:
    from mlflow.tracking import MlflowClient

    failed, finished, model = tracked.failed, tracked.finished, tracked.model
    assert (failed["status"], finished["status"]) == ("FAILED", "FINISHED")
    assert failed["id"] == finished["id"]
    assert finished["name"] == "tests tracked model"
    assert {1, 2} <= {step for step, _ in failed["metrics"]["loss"]} <= {1, 2, 3}
    assert sorted({step for step, _ in finished["metrics"]["loss"]}) == [1, 2, 3]
    assert finished["metrics"]["gradient_norm"] == [(7, 0.25)]
    expected = {"lr": "0.02", "epochs": "3", "np": "1", "seed": "0", "train": "training_functions:train"}
    assert expected.items() <= finished["params"].items()
    assert (finished["tags"]["hops.model"], finished["tags"]["hops.fingerprint"]) == (model.uri, model.fingerprint)
    assert tracked.evaluated["metrics"]["evaluation.eval_auc"] == [(0, 0.6)]
    assert tracked.run["metrics"] == tracked.evaluated["metrics"]
    assert tracked.registered == 1
    assert MlflowClient(tracked.tracking_uri).get_model_version("m", "1").run_id == tracked.run["id"]


def test_record_continues_through_a_killed_try(tracked: Any) -> None:
    failed, record = tracked.failed_record, tracked.record
    assert (failed.status, record.status) == ("FAILED", "FINISHED")
    assert [attempt.end_time is not None for attempt in record.tries] == [True, True]
    assert "was ended by SIGKILL" in record.tries[0].error and record.tries[1].error is None
    assert record.start_time == failed.start_time == record.tries[0].start_time
    assert tracked.curves["loss"].steps == [1, 2, 3]
    assert record.figures["loss"].last.value == tracked.curves["loss"].values[-1]
    assert record.figures["gradient_norm"].last.to_dict() == {"value": 0.25, "step": 7}
    assert record.figures["evaluation.eval_auc"].last.value == 0.6
    assert record.figures["evaluation.blessed"].last.value == 0
    assert record.params == tracked.finished["params"]
    assert record.tags.items() <= tracked.finished["tags"].items()
    assert record.mlflow["run"] == tracked.finished["id"] and record.cost["core_s"] > 0
    assert {each.context: each.rows for each in record.datasets}["training"] == 1001


def test_retry_resumes_after_last_checkpoint(tracked: Any, trainings: Trainings) -> None:
    failure = tracked.failure
    assert failure.retryable and "rank 0 is about to have an accident" in str(failure)
    match = re.search(r"The checkpoint after epoch ([12]) \(step (11|22)\) is kept in", str(failure))
    assert match is not None, str(failure)
    assert any(line.startswith(f"resuming after epoch {match[1]}") for line in tracked.lines)
    assert "epoch 1 of 3" not in tracked.lines
    folder = trainings.store.local(tracked.model)
    summary = json.loads((folder / "training.json").read_text())
    assert (summary["resumed_after_epoch"], len(summary["epochs"])) == (int(match[1]), 3)
    earlier = "the earlier try's epochs are there, too"
    assert [step for step, _ in read_events(folder)["train/loss"]] == [1, 2, 3], earlier
    assert not list(Path(trainings.store.root[7:]).glob("_state/checkpoints/tests/tracked/*/*"))


def test_secret_hyperparameters_are_not_written(tracked: Any, trainings: Trainings) -> None:
    params = tracked.finished["params"]
    assert params["password"] == "***"
    assert json.loads(params["source"]) == {
        "uri": "https://***@h/x?sig=***",
        "token": "***",
        "args": ["--api-key", "***", "secret=***"],
    }
    folder = trainings.store.local(tracked.model)
    assert json.loads((folder / "training.json").read_text())["params"]["password"] == "***"
    records = Path(trainings.store.root[7:]) / "_trainings"
    written = {
        str(file): file.read_bytes() for place in (folder, records) for file in place.rglob("*") if file.is_file()
    }
    for secret in ("hunter2", "PW-x", "s1g", "t0ken", "k3y", "h1dden"):
        assert [name for name, content in written.items() if secret.encode() in content] == []
        assert secret not in json.dumps(tracked.run)
        assert not [line for line in tracked.lines if secret in line]


def test_failing_mlflow_fails_no_evaluation(tracked: Any, trainings: Trainings, caplog: Any, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    uri, model = f"sqlite:///{tmp_path}/file/mlflow.db", tracked.model
    log_evaluation(trainings.store, uri, model, trainings.store.manifest(model.uri), Artifact("e", "evaluation", "f"))
    assert "These metrics were not logged to the training's run in MLflow" in caplog.text


def test_training_continues_without_mlflow_with_a_warning(trainings: Trainings, examples: Artifact) -> None:
    services = {"tracking_uri": "http://127.0.0.1:9"}
    model = trainings("training_functions:train", examples, services=services, epochs=1, np=1)
    assert model.kind == "model"
    (warning,) = [line for line in trainings.lines if "no longer tracked" in line]
    assert "MLflow at http://127.0.0.1:9 does not open" in warning
