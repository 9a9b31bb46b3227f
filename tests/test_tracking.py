"""MLflow's run of a training: one for all of its tries, with parameters, metrics, code, environment and lineage."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_hops.hooks.runtime import StepFailed

pytestmark = pytest.mark.runtime
TESTS = Path(__file__).parent
STEPS = (str(TESTS / "steps"), str(TESTS))


@pytest.fixture(scope="module")
def tracked(shared_run_step: Any, warm_launcher: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A training of which a rank is killed after its second epoch, its retry, and the registration of its model."""
    folder = tmp_path_factory.mktemp("tracking")
    tracking_uri = f"sqlite:///{folder}/mlflow.db"

    def run(entry: str, **kwargs: Any) -> Any:
        return shared_run_step(entry, code_paths=STEPS, launcher=warm_launcher, **kwargs)

    examples = run(
        "transformed_examples:write", params={"rows": {"train": [300], "eval": [100]}}, kind="transformed_examples"
    )
    given = {
        "params": {
            "train": "training_functions:train",
            "params": {"epochs": 3, "lr": 0.02, "accident_after": 2, "marker": str(folder / "marker")},
        },
        "inputs": {"examples": examples},
        "kind": "model",
        "run_id": "tracked",
        "task_id": "train",
        "services": {"tracking_uri": tracking_uri},
    }
    asked = {"tracking_uri": tracking_uri, "experiment": "tests"}
    with pytest.raises(StepFailed, match="was ended by SIGKILL"):
        run("airflow_hops.runtime.train:run", **given)
    (after_failure,) = run("ask_mlflow:runs", params=asked)
    model = run("airflow_hops.runtime.train:run", **given)
    (after_retry,) = run("ask_mlflow:runs", params=asked)
    registered = run(
        "ask_mlflow:register", params={"tracking_uri": tracking_uri, "model_name": "m"}, inputs={"model": model}
    )
    runs = run("ask_mlflow:runs", params=asked)
    return {
        "examples": examples,
        "model": model,
        "failed": after_failure,
        "finished": after_retry,
        "registered": registered,
        "runs": runs,
    }


def test_a_retry_takes_up_the_run_of_the_try_before(tracked: dict[str, Any]) -> None:
    failed, finished = tracked["failed"], tracked["finished"]
    assert (failed["status"], finished["status"]) == ("FAILED", "FINISHED")
    assert failed["id"] == finished["id"]
    assert finished["name"] == "tests tracked train"
    assert {1} <= {step for step, _ in failed["metrics"]["loss"]} <= {1, 2}
    assert sorted({step for step, _ in finished["metrics"]["loss"]}) == [1, 2, 3]
    assert finished["metrics"]["gradient_norm"] == [[7, 0.25]]


def test_hyperparameters_have_their_own_names(tracked: dict[str, Any]) -> None:
    params = tracked["finished"]["params"]
    assert {name: params[name] for name in ("lr", "epochs", "np", "seed", "train")} == {
        "lr": "0.02",
        "epochs": "3",
        "np": "2",
        "seed": "0",
        "train": "training_functions:train",
    }


def test_the_data_it_was_made_from_is_named(tracked: dict[str, Any]) -> None:
    finished, examples = tracked["finished"], tracked["examples"]
    assert finished["tags"]["hops.model"] == tracked["model"].uri
    assert finished["tags"]["hops.fingerprint"] == tracked["model"].fingerprint
    by_split = {each["name"].rpartition("/")[2]: each for each in finished["inputs"]}
    assert set(by_split) == {"train", "eval"}
    assert json.loads(by_split["train"]["source"])["fingerprint"] == examples.fingerprint
    assert json.loads(by_split["train"]["profile"]) == {"num_rows": 300}


def test_code_and_environment_are_kept_with_it(tracked: dict[str, Any]) -> None:
    finished = tracked["finished"]
    assert finished["files"] == ["code/training_functions.py", "environment/requirements.txt", "training.json"]
    assert "horovod==0.28.1" in finished["requirements"].splitlines()


def test_a_registered_version_leads_to_the_run_of_its_training(tracked: dict[str, Any]) -> None:
    (run,) = tracked["runs"]
    assert tracked["registered"] == {"version": 1, "run": run["id"]}


def test_a_training_goes_on_without_mlflow_and_says_so(shared_run_step: Any, warm_launcher: Any, tracked: Any) -> None:
    model = shared_run_step(
        "airflow_hops.runtime.train:run",
        params={"train": "training_functions:train", "params": {"epochs": 1}},
        inputs={"examples": tracked["examples"]},
        kind="model",
        code_paths=STEPS,
        launcher=warm_launcher,
        services={"tracking_uri": "http://127.0.0.1:9"},
    )
    assert model.kind == "model"
    (warning,) = [line.text for line in shared_run_step.lines if "not tracked any further" in line.text]
    assert "MLflow at http://127.0.0.1:9 does not open" in warning
