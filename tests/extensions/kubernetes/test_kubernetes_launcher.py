"""Steps as pods of a real Kubernetes."""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes_cluster import BUSYBOX
from step_runner import StepRunner
from waiting import wait_for

from airflow_hops.cli.doctor import Check, check_step
from airflow_hops.core.artifacts.artifact import Producer
from airflow_hops.core.errors import BadInput, HopsError, MachineLost, StepFailed
from airflow_hops.core.steps.protocol import StepSpec
from airflow_hops.core.store import ArtifactStore
from airflow_hops.extensions.kubernetes.runner.launcher import KubernetesLauncher
from airflow_hops.runner.runtime import RuntimeHook
from airflow_hops.testing.launchers import LauncherContract
from tests.extensions.kubernetes.kubernetes_pods import Background, Pods, machine_pod

pytestmark = [pytest.mark.runtime, pytest.mark.scheduled(part="kubernetes")]

STEPS = Path(__file__).with_name("pod_steps.py")


class TestKubernetesLauncher(LauncherContract):
    name = "kubernetes"

    @pytest.fixture
    def runtime(self, runtime: Path) -> Path:
        return runtime

    @pytest.fixture
    def options(self, pods: Pods) -> Mapping[str, Any]:
        return pods.options


class Runner(StepRunner):
    """Runs the steps of ``pod_steps.py`` as pods."""

    pods: Pods
    code: Path
    hook: RuntimeHook

    def launcher(self, **options: Any) -> KubernetesLauncher:
        return KubernetesLauncher(options.pop("runtime", self.runtime), **{**self.pods.options, **options})

    def spec(self, function: str, *, dag_id: str = "tests", try_number: int = 1, **params: Any) -> StepSpec:
        producer = Producer(dag_id, "run", function, try_number=try_number)
        return StepSpec(
            step=function, entry=f"pod_steps:{function}", params=params, producer=producer, code_paths=(str(self.code),)
        )

    def run(self, spec: StepSpec, *, on_line: Callable[[Any], None] | None = None, **options: Any) -> Any:
        self.hook = RuntimeHook()
        settings = replace(self.hook.settings, store=self.store.root, storage_options=self.store.storage_options)
        self.hook.__dict__["settings"] = settings
        self.lines = []
        self.result = self.hook.run(
            spec, launcher=self.launcher(**options), cache=False, on_line=on_line or self.lines.append
        )
        return self.result.value

    def texts(self) -> list[str]:
        return [line.text for line in self.lines]


@pytest.fixture
def runner(pods: Pods, runtime: Path, tmp_path: Path) -> Runner:
    runner = Runner(str(tmp_path / "store"), runtime)
    runner.pods, runner.code = pods, tmp_path / "dags"
    runner.code.mkdir()
    (runner.code / "pod_steps.py").write_text(STEPS.read_text())
    (runner.code / "neighbour.py").write_text("WORD = 'beside the DAG'\n")
    (runner.code / "data.txt").write_text("rows")
    return runner


def override(**spec: Any) -> dict[str, Any]:
    """Returns options with a changed pod; ``container`` changes its first container."""

    def change(pods: Pods) -> dict[str, Any]:
        pod = json.loads(json.dumps(pods.options["pod_override"]))
        pod["spec"]["containers"][0].update(spec.get("container", {}))
        pod["spec"].update({name: value for name, value in spec.items() if name != "container"})
        return pod

    return change  # type: ignore[return-value]


def test_step_streams_and_returns(runner: Runner, tmp_path: Path) -> None:
    """Lines and progress arrive while the step runs; user code, its data and its neighbours travel with it."""
    answer = tmp_path / "store" / "answer"
    progress: list[float] = []

    def hear(line: Any) -> None:
        if line.progress is not None:
            progress.append(line.progress)
            assert line.metrics == {"loss": 0.25}
            (pod,) = runner.pods.list()
            assert "very-secret" not in json.dumps(pod)
            answer.write_text("yes")

    runner.store.storage_options = {"unused_token": "very-secret"}
    spec = runner.spec("talk", dag_id="Größe_der.Flüge_", answer=str(answer))
    began_s = time.time()
    value = runner.run(spec, on_line=hear)
    (pod,) = runner.result.phases
    assert (pod.name, pod.attributes["k8s.pod.name"]) == ("pod", value["host"])
    times = [began_s - 1, pod.began_at, *(pod.events[name] for name in ("scheduled", "running", "ended")), time.time()]
    assert times == sorted(times) and pod.ended_at == pod.events["ended"]
    assert pod.attributes["k8s.node.name"] and pod.attributes["k8s.namespace.name"] == runner.pods.namespace
    assert progress == [0.5]
    assert value["word"] == "beside the DAG" and value["data"] == "rows"
    assert value["host"].startswith("hops-grosse-der-fluge")
    runner.pods.wait_until_gone()
    assert not list((tmp_path / "store" / "_state").rglob("*.json"))


def test_step_uses_store_on_s3(runner: Runner, tmp_path: Path) -> None:
    import s3fs
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    try:
        port = server.get_host_and_port()[1]
        runner.pods.cluster.relay("127.0.0.1", runner.pods.cluster.node, port, os.getpid(), port)
        options = {"key": "testing", "secret": "hidden-secret", "endpoint_url": f"http://127.0.0.1:{port}"}
        s3fs.S3FileSystem(**options).mkdir("bucket")
        runner.store = ArtifactStore("s3://bucket/hops", storage_options=options)
        read_only = {"securityContext": {"readOnlyRootFilesystem": True}}
        pod = override(container=read_only, hostNetwork=True, securityContext={"runAsUser": 50000})(runner.pods)
        assert runner.run(runner.spec("where"), pod_override=pod)["dag"] == "tests"
    finally:
        server.stop()


def test_doctor_tells_of_a_pod(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    def checked(**options: Any) -> list[Check]:
        extra = {"store": runner.store.root, "launcher": "kubernetes", "runtime": str(runner.runtime)}
        extra["launcher_options"] = {**runner.pods.options, **options}
        monkeypatch.setenv("AIRFLOW_CONN_PODS", json.dumps({"conn_type": "hops", "extra": extra}))
        return list(check_step(RuntimeHook("pods")))

    first, *modules = checked()
    assert (first.name, first.status) == ("step by kubernetes", "ok") and "reads and writes the store" in first.found
    assert {"tensorflow", "pyspark"} <= {each.name for each in modules}
    assert {each.status for each in modules} == {"ok"}
    assert not runner.store.names(runner.store.internal("_state", "doctor"))
    (failed,) = checked(conn_id="nowhere")
    assert failed.status == "fail" and "nowhere" in failed.found
    assert failed.advice == "correct the connection's launcher_options, or what they name for 'kubernetes'"


@pytest.mark.parametrize(("needs_s", "grace_s", "ends_in_order"), [(3, 10, True), (60, 2, False)])
def test_kill_gives_grace(runner: Runner, tmp_path: Path, needs_s: float, grace_s: int, ends_in_order: bool) -> None:
    marker = tmp_path / "store" / "marker"
    pod = override(terminationGracePeriodSeconds=grace_s)(runner.pods)
    spec = runner.spec("end_slowly", marker=str(marker), seconds=needs_s)
    step = Background(lambda: runner.run(spec, pod_override=pod))
    wait_for(lambda: "waiting" in runner.texts(), "the step")
    runner.hook.kill()
    # On a busy machine, the pod may be removed between its end and the next look at it.
    with pytest.raises(StepFailed, match=r"ended by (exit code|SIG\w+).* without a result"):
        step.result(60)
    assert marker.exists() == ends_in_order
    runner.pods.wait_until_gone()


def start_worker(runner: Runner, spec: StepSpec, line: str) -> Any:
    """Runs a step in another process, and returns that once the step has written a line."""
    heard = multiprocessing.get_context("fork").Event()

    def work() -> None:
        os.setsid()
        runner.run(spec, on_line=lambda each: heard.set() if line in each.text else None)

    worker = multiprocessing.get_context("fork").Process(target=work, daemon=True)
    worker.start()
    assert heard.wait(60)
    return worker


def kill_worker(worker: Any) -> None:
    os.kill(worker.pid, signal.SIGKILL)
    worker.join()


def test_step_survives_outage_of_api(runner: Runner) -> None:
    step = Background(lambda: runner.run(runner.spec("wait_long", seconds=12)))
    wait_for(lambda: "waiting" in runner.texts(), "the step")
    runner.pods.cluster.cut_off(6)
    assert step.result(120).startswith("hops-tests-wait-long")
    assert runner.texts().count("waiting") == 1 and "waited" in runner.texts()


def test_orphan_ends_and_is_removed(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__HOPS__ORPHAN_TIMEOUT", "3")
    kill_worker(start_worker(runner, runner.spec("wait_long"), "waiting"))
    pod = runner.pods.wait_for("Failed")
    log = runner.pods.cluster.kubectl("logs", "-n", runner.pods.namespace, pod["metadata"]["name"])
    assert "no worker has followed this pod for 3 s" in log


def test_step_of_a_dead_worker_does_not_begin(runner: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__HOPS__ORPHAN_TIMEOUT", "4")
    marker = tmp_path / "store" / "marker"
    runner.pods.cluster.kubectl("cordon", "test-node")
    try:
        spec = runner.spec("end_slowly", marker=str(marker), seconds=0)
        worker = start_worker(runner, spec, "waits: Unschedulable")
        kill_worker(worker)
    finally:
        runner.pods.cluster.kubectl("uncordon", "test-node")
    pod = runner.pods.wait_for("Failed")
    (container,) = pod["status"]["containerStatuses"]
    assert "no worker waits for this pod any longer" in container["state"]["terminated"]["message"]
    log = runner.pods.cluster.kubectl("logs", "-n", runner.pods.namespace, pod["metadata"]["name"])
    assert "waiting" not in log and not marker.exists()


def test_eviction_is_reported(runner: Runner) -> None:
    limits = {"resources": {"limits": {"ephemeral-storage": "8Mi"}}}
    with pytest.raises(HopsError, match=r"was evicted from node test-node \(.*\); request the memory and disk"):
        runner.run(runner.spec("fill_disk"), pod_override=override(container=limits)(runner.pods))


def test_image_without_runtime_is_refused(runner: Runner) -> None:
    with pytest.raises(BadInput, match=r"the image .*busybox:test has no runtime environment at the path"):
        runner.run(runner.spec("where"), pod_override={"spec": {"containers": [{"name": "base", "image": BUSYBOX}]}})


def test_image_with_other_pins_is_refused(runner: Runner, runtime: Path, tmp_path: Path) -> None:
    stamp = tmp_path / "stamp"
    stamp.write_text(f"other\n{runtime}\nruntime.txt\n")
    pod = json.loads(json.dumps(runner.pods.options["pod_override"]))
    mount = {"name": "stamp", "mountPath": str(runtime.resolve() / "hops-pins.sha256")}
    pod["spec"]["containers"][0]["volumeMounts"].append(mount)
    pod["spec"]["volumes"].append({"name": "stamp", "hostPath": {"path": str(stamp)}})
    with pytest.raises(StepFailed, match=r"in the pod's image: runtime environment .* holds pins other") as raised:
        runner.run(runner.spec("where"), pod_override=pod)
    assert not raised.value.retryable


def test_unreachable_store_is_reported(runner: Runner, runtime: Path) -> None:
    with pytest.raises(HopsError, match=r"the pod cannot read file:///.*; mount that folder at the same path"):
        runner.run(runner.spec("where"), pod_override=machine_pod(runtime))


def test_refusals_of_the_api_are_reported(runner: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = yaml.safe_load(runner.pods.cluster.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": "guest-token"}
    (tmp_path / "guest").write_text(yaml.safe_dump(config))
    extra = {"kube_config_path": str(tmp_path / "guest"), "namespace": runner.pods.namespace}
    monkeypatch.setenv("AIRFLOW_CONN_GUEST", json.dumps({"conn_type": "kubernetes", "extra": extra}))
    with pytest.raises(BadInput, match=r'Kubernetes denies it \(.*User "guest" cannot list .*\); docs/extensions'):
        runner.run(runner.spec("where"), conn_id="guest")
    with pytest.raises(BadInput, match=r'namespaces "nowhere" not found; create it'):
        runner.run(runner.spec("where"), namespace="nowhere")
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "spec": {"hard": {"pods": "0"}}}
    runner.pods.cluster.apply({**quota, "metadata": {"name": "none", "namespace": runner.pods.namespace}})
    path = f"/api/v1/namespaces/{runner.pods.namespace}/resourcequotas/none"
    wait_for(lambda: runner.pods.cluster.get(path).get("status", {}).get("hard"), "the quota")
    with pytest.raises(HopsError, match=r"the namespace's quota is exhausted \(.*pods=0.*\); wait"):
        runner.run(runner.spec("where"))
    runner.pods.wait_until_gone()


def test_drained_node_is_reported(runner: Runner) -> None:
    step = Background(lambda: runner.run(runner.spec("wait_long")))
    wait_for(lambda: "waiting" in runner.texts(), "the step")
    try:
        flags = ("--force", "--delete-emptydir-data", "--ignore-daemonsets", "--pod-selector=airflow-hops/role")
        runner.pods.cluster.kubectl("drain", "test-node", *flags)
        with pytest.raises(HopsError, match="was evicted because its node test-node is being drained; a retry"):
            step.result(30)
    finally:
        runner.pods.cluster.kubectl("uncordon", "test-node")


@pytest.mark.last(1)
def test_lost_node_is_reported(runner: Runner) -> None:
    step = Background(lambda: runner.run(runner.spec("wait_long"), lost_node_timeout_s=5))
    wait_for(lambda: "waiting" in runner.texts(), "the step")
    runner.pods.cluster.stop_kubelet()
    try:
        with pytest.raises(MachineLost, match="is lost with its node test-node, which no longer answers"):
            step.result(120)
    finally:
        runner.pods.cluster.start_kubelet()


logging.getLogger("airflow.providers.cncf.kubernetes").setLevel(logging.WARNING)
