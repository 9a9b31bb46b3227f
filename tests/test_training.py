"""The train operator, and trainings that are killed as Airflow kills steps."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from waiting import wait_for

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.errors import StepFailed
from airflow_hops.runner.runtime import RuntimeHook

pytestmark = pytest.mark.runtime
STEPS = (str(Path(__file__).parent / "steps"),)
ENTRY = "airflow_hops.ml.training.stage:run"


@pytest.fixture(scope="module")
def run(shared_run_step: Any, warm_launcher: Any) -> Any:
    """Runs steps of the module's own code."""

    def run_step(entry: str, **kwargs: Any) -> Any:
        return shared_run_step(entry, code_paths=STEPS, launcher=warm_launcher, **kwargs)

    return run_step


@pytest.fixture(scope="module")
def examples(run: Any) -> Artifact:
    result: Artifact = run(
        "transformed_examples:write",
        params={"rows": {"train": [301], "eval": [201]}},
        kind="transformed_examples",
        inputs={"statistics": _reference("statistics"), "schema": _reference("schema")},
    )
    return result


def test_autograph_files_are_removed(
    run: Any, examples: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    params = {"train": "training_functions:train", "params": {"epochs": 1}}
    run(ENTRY, params=params, inputs={"examples": examples}, kind="model")
    assert list(tmp_path.rglob("__autograph*")) == []


def test_ranks_end_with_a_killed_step(shared_run_step: Any, warm_launcher: Any, examples: Artifact) -> None:
    def train() -> None:
        with pytest.raises(StepFailed):
            shared_run_step(
                ENTRY,
                params={"train": "training_functions:train_slowly", "params": {}},
                inputs={"examples": examples},
                kind="model",
                code_paths=STEPS,
                launcher=warm_launcher,
            )

    thread = threading.Thread(target=train)
    thread.start()
    lines = wait_for(
        lambda: [line.text for line in shared_run_step.lines if line.text.startswith("pids")], "ranks", 300
    )
    rank = psutil.Process(int(lines[0].split()[1]))
    step = rank.parent()
    assert step is not None
    ranks = step.children()
    assert len(ranks) == 2
    step.kill()
    _, alive = psutil.wait_procs(ranks, timeout=300)
    assert not [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]
    thread.join()


def test_run_conf_overrides_hyperparameters(tmp_path: Path) -> None:
    from airflow.sdk import DAG

    from airflow_hops.operators.training import HorovodTrainOperator

    with DAG("training", schedule=None, params={"window": "2013-01"}):
        operator = HorovodTrainOperator(
            task_id="train", train="flights.model:train", examples="{{ x }}", params={"lr": 0.001, "epochs": 2}, np=3
        )
    assert operator.params.dump() == {"window": "2013-01", "lr": 0.001, "epochs": 2}
    context: Any = {"params": {"lr": 0.5, "epochs": 2, "window": "2013-01"}}
    values = {"train": "flights.model:train", "params": {"lr": 0.5, "epochs": 2}, "np": 3, "seed": 0}
    params = operator.step_params(context)
    assert {name: params[name] for name in values} == values
    operator.examples = _reference("transformed_examples").to_dict()
    ti = SimpleNamespace(dag_id="training", run_id="r", task_id="train", map_index=None, try_number=2)
    RuntimeHook().make_store()
    spec = operator.build_spec(
        RuntimeHook(), {**context, "ti": ti, "dag": SimpleNamespace(fileloc=str(tmp_path / "d.py"))}
    )
    assert spec.entry == ENTRY
    assert spec.output is not None and spec.output.kind == "model"
    assert [artifact.kind for artifact in spec.inputs["examples"]] == ["transformed_examples"]


def test_task_torch_sends_the_function_to_torch_ranks() -> None:
    from airflow.sdk import DAG, task

    with DAG("torch", schedule=None):

        @task.torch(np=3, runtime="torch")
        def train(context: Any, examples: Any, lr: float) -> Any:
            return lr

        train(_reference("transformed_examples").to_dict(), lr=0.1)
        operator = train.override(task_id="other")(_reference("transformed_examples").to_dict(), lr=0.2).operator
        sharded = train.override(task_id="sharded", strategy="fsdp")(None, lr=0.2).operator
        with pytest.raises(ValueError, match="strategy is 'ddp', expected one of 'torch', 'fsdp'"):
            train.override(task_id="unknown", strategy="ddp")(None, lr=0.2)
    assert (operator.strategy, operator.np, operator.runtime) == ("torch", 3, "torch")
    assert sharded.strategy == "fsdp"
    assert {"hosts", "conf", "op_kwargs"} <= set(operator.template_fields)
    refused = r"@task.torch: train is 'a:b'; expected none, as train\(\) replaces it"
    with DAG("both", schedule=None), pytest.raises(ValueError, match=refused):
        task.torch(train="a:b")(train.function)()


def _reference(kind: str) -> Artifact:
    return Artifact(f"file:///store/{kind}", kind, "0" * 64)
