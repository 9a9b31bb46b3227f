"""Objects of a step in Kubernetes are valid for current versions, and bad templates are rejected, without a cluster."""

from __future__ import annotations

import json
import os
import re
import time
import zipfile
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
from kubernetes import client
from kubernetes.client.rest import ApiException

from airflow_hops.core.artifacts.artifact import Producer
from airflow_hops.core.errors import BadInput, HopsError, MachineLost
from airflow_hops.core.steps.protocol import StepSpec
from airflow_hops.core.store import ArtifactStore
from airflow_hops.extensions.experiments import SearchOperator
from airflow_hops.extensions.kubernetes.runner import manifests
from airflow_hops.extensions.kubernetes.runner.archives import store_code
from airflow_hops.extensions.kubernetes.runner.failures import (
    calling_api,
    not_started,
    why_it_cannot_start,
    why_it_ended,
)
from airflow_hops.extensions.kubernetes.runner.launcher import KubernetesLauncher, needed_modules
from airflow_hops.hooks.model_server import control_services
from airflow_hops.operators import HorovodTrainOperator, InfraValidateOperator, PrepareOperator
from airflow_hops.runner.runtime import RuntimeHook

OVERRIDE = {
    "spec": {
        "serviceAccountName": "steps",
        "nodeSelector": {"accelerator": "h100"},
        "tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}],
        "containers": [{"name": "base", "image": "hops:1", "resources": {"limits": {"nvidia.com/gpu": "1"}}}],
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
    }
}


def step_pod(user: client.V1Pod | None = None) -> client.V1Pod:
    producer = Producer("flights", "manual__2026-01-01T00:00:00+00:00", "train", 3)
    return manifests.step_pod(
        user or manifests.merge(manifests.read_pod(OVERRIDE, "pod_override")),
        name=manifests.pod_name(producer),
        namespace="ml",
        python=Path("/opt/hops-runtime/bin/python"),
        folder=Path("/tmp/hops-step-1"),
        labels=manifests.labels_of(producer, "stages.train:run", "f00"),
    )


@pytest.mark.parametrize("version", ["1.27", "1.34"])
def test_objects_fit_current_schemas(version: str) -> None:
    pod = step_pod()
    gang = manifests.in_gang(pod, pod.metadata.name, "step", 3, "gpus")
    rank = manifests.in_gang(manifests.rank_pod(pod, client.V1Pod(), 1), pod.metadata.name, "rank-1", 3, "gpus")
    secret, service = manifests.step_secret(pod, {"spec.json": "{}"}), manifests.rank_service(pod)
    for kind, value in (("Pod", pod), ("Pod", gang), ("Pod", rank), ("Secret", secret), ("Service", service)):
        json_value = client.ApiClient().sanitize_for_serialization(value)
        kubernetes_validate.validate({"apiVersion": "v1", "kind": kind, **json_value}, version, strict=True)


def test_step_keeps_user_settings() -> None:
    pod = step_pod()
    spec, container = pod.spec, pod.spec.containers[0]
    assert (spec.service_account_name, spec.node_selector) == ("steps", {"accelerator": "h100"})
    assert container.resources.limits == {"nvidia.com/gpu": "1"} and spec.tolerations[0].key == "gpu"
    assert {volume.name for volume in spec.volumes} == {"data", "hops-order", "hops-step"}
    assert spec.restart_policy == "Never" and container.command[0] == "/opt/hops-runtime/bin/python"


def test_kueue_starts_a_gang_as_a_whole() -> None:
    pod = step_pod()
    rank = manifests.in_gang(manifests.rank_pod(pod, client.V1Pod(), 0), pod.metadata.name, "rank-0", 3, "gpus")
    labels = rank.metadata.labels
    assert labels["kueue.x-k8s.io/queue-name"] == "gpus"
    assert labels["kueue.x-k8s.io/pod-group-name"] == pod.metadata.name
    assert rank.metadata.annotations["kueue.x-k8s.io/pod-group-total-count"] == "3"
    assert (rank.spec.hostname, rank.spec.subdomain) == ("rank-0", pod.metadata.name)
    alone = manifests.in_gang(manifests.rank_pod(pod, client.V1Pod(), 2), pod.metadata.name, "rank-2", None, "gpus")
    kueue = {name for name in {**alone.metadata.labels, **alone.metadata.annotations} if "kueue" in name}
    assert kueue == {"kueue.x-k8s.io/queue-name"} and alone.spec.subdomain == pod.metadata.name


@pytest.mark.parametrize("dag_id", ["flights", "Größe_der.Flüge_", "__", "x" * 250, "9-lives."])
def test_names_are_legal(dag_id: str) -> None:
    producer = Producer(dag_id, "manual__2026-01-01T00:00:00+00:00", "t" * 200)
    assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name := manifests.pod_name(producer)) and len(name) <= 60
    for value in manifests.labels_of(producer, "stages.train:run", "f00").values():
        assert re.fullmatch(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?", value) and len(value) <= 63


TOLERATIONS = [{"key": "gpu", "operator": "Exists"}]
MEMORY = {"limits": {"memory": "1Gi"}}


@pytest.mark.parametrize(
    ("value", "images", "limits"),
    [
        ({"spec": {"tolerations": TOLERATIONS}}, ["hops:1"], {"nvidia.com/gpu": "1"}),
        ({"spec": {"tolerations": TOLERATIONS, "containers": None}}, ["hops:1"], {"nvidia.com/gpu": "1"}),
        (
            {"metadata": {"labels": {"a": "b"}}, "spec": {"tolerations": TOLERATIONS}},
            ["hops:1"],
            {"nvidia.com/gpu": "1"},
        ),
        ({"spec": {"tolerations": TOLERATIONS, "containers": [{"resources": MEMORY}]}}, ["hops:1"], MEMORY["limits"]),
        (
            {"spec": {"tolerations": TOLERATIONS, "containers": [{}, {"name": "proxy", "image": "proxy:1"}]}},
            ["hops:1", "proxy:1"],
            {"nvidia.com/gpu": "1"},
        ),
    ],
)
def test_override_may_omit_what_the_template_has(value: Any, images: list[str], limits: dict[str, str]) -> None:
    template = manifests.read_pod(OVERRIDE, "pod_template_file")
    template.spec.tolerations = None
    pod = step_pod(manifests.merge(template, manifests.read_pod(value, "pod_override")))
    assert [each.key for each in pod.spec.tolerations] == ["gpu"]
    assert ([each.image for each in pod.spec.containers], pod.spec.containers[0].name) == (images, "base")
    assert pod.spec.containers[0].resources.limits == limits


@pytest.mark.parametrize(
    ("value", "error"),
    [
        ({"spec": ["tolerations"]}, "pod_override: it is not a pod"),
        ({"spec": {"containers": ["base"]}}, "pod_override: it is not a pod"),
        (
            {"spec": {"containers": [{"name": "base", "resource": {}, "command": []}], "nodeselector": {"a": "b"}}},
            "no field 'spec.nodeselector'",
        ),
        ({"spec": {"containers": [{"name": "base", "command": ["sh"]}]}}, "the first container has 'command'"),
        ({"spec": {"containers": [], "restartPolicy": "Always"}}, "restartPolicy is 'Always', expected 'Never'"),
        (["spec"], "is a list, expected a pod"),
    ],
)
def test_invalid_override_is_refused(value: Any, error: str) -> None:
    with pytest.raises(BadInput, match=re.escape(error)):
        manifests.read_pod(value, "pod_override")


def test_invalid_template_and_image_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"pod_template_file .*missing.yaml: .*No such file"):
        KubernetesLauncher(tmp_path, pod_template_file=str(tmp_path / "missing.yaml"))
    with pytest.raises(BadInput, match="there is no image for the step's pod"):
        KubernetesLauncher(tmp_path)


@pytest.mark.parametrize(
    ("reason", "message", "is_final"),
    [
        ("ErrImagePull", 'failed to do request: Head "https://r.example.org": connect: connection refused', False),
        ("ErrImagePull", "unexpected status code 503 Service Unavailable", False),
        ("ImagePullBackOff", 'Back-off pulling image "r.example.org/not-found/denied:1"', False),
        ("ErrImagePull", 'failed to resolve reference "r.example.org/not-found/denied:1": not found', True),
        ("ErrImagePull", "pull access denied, repository does not exist or may require authorization", True),
        ("CreateContainerConfigError", 'secret "login" not found', True),
        ("CreateContainerConfigError", "failed to sync secret cache: timed out waiting for the condition", False),
    ],
)
@pytest.mark.parametrize("kind", ["container_statuses", "init_container_statuses"])
def test_only_permanent_problems_fail_at_once(reason: str, message: str, is_final: bool, kind: str) -> None:
    waiting = client.V1ContainerState(waiting=client.V1ContainerStateWaiting(reason=reason, message=message))
    image = "r.example.org/not-found/denied:1"
    status = client.V1ContainerStatus(
        name="base", image=image, image_id="", ready=False, restart_count=0, state=waiting
    )
    pod = step_pod()
    pod.status = client.V1PodStatus(phase="Pending", **{kind: [status]})
    error = why_it_cannot_start(pod)
    assert (error is not None) == is_final and not (error and error.retryable)


@pytest.mark.parametrize(
    ("reason", "advice"),
    [
        ("Unschedulable: 0/1 nodes are available: 1 Insufficient memory.", "ask for less in resources"),
        ("Unschedulable: 1 node(s) had taint {gpu: }, that the pod didn't tolerate.", "tolerations"),
        ('Unschedulable: persistentvolumeclaim "data" not found', "create it, or correct"),
        ('FailedMount: MountVolume.SetUp failed for volume "x" : configmap "c" not found', "create it, or correct"),
        ("ErrImagePull: dial tcp 127.0.0.1:1: connect: connection refused", "reach the image's registry"),
    ],
)
def test_advice_fits_the_reason(reason: str, advice: str) -> None:
    message = str(not_started(step_pod(), reason, 5))
    assert advice in message and ("ask for less" in message) == ("Insufficient" in reason)


def ended(**changes: Any) -> client.V1Pod:
    """A pod whose container has ended, or as the changes of its status say."""
    pod = step_pod()
    pod.spec.node_name = "node-1"
    terminated = client.V1ContainerStateTerminated(exit_code=1, **changes.pop("terminated", {}))
    state = client.V1ContainerState(terminated=terminated)
    status = {"name": "base", "image": "hops:1", "image_id": "", "ready": False, "restart_count": 0, "state": state}
    kind = changes.pop("kind", "container_statuses")
    status["name"] = "base" if kind == "container_statuses" else "fetch"
    pod.status = client.V1PodStatus(**{kind: [client.V1ContainerStatus(**status)], **changes})
    return pod


UNREACHABLE = [{"type": "Ready", "status": "False"}, {"type": "ContainersReady", "status": "True"}]


@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        ({}, None, ""),
        ({"terminated": {"reason": "OOMKilled"}}, HopsError, "used more memory than 8Gi; raise resources.limits"),
        ({"terminated": {"reason": "StartError", "message": "no\nfile"}}, BadInput, "the image hops:1 has no runtime"),
        ({"terminated": {"message": '{"error": "no store", "retryable": true}'}}, HopsError, ": no store"),
        ({"terminated": {"message": '{"error": "no code", "retryable": false}'}}, BadInput, ": no code"),
        (
            {"kind": "init_container_statuses"},
            HopsError,
            "'fetch' ended with exit code 1 .*\n  its last lines of",
        ),
        ({"reason": "Evicted", "message": "disk"}, HopsError, r"was evicted from node node-1 \(disk\); request"),
        ({"reason": "Preempting", "message": ""}, MachineLost, "was ended by Kubernetes"),
        ({"reason": "DeadlineExceeded", "message": ""}, HopsError, "was ended by Kubernetes"),
        ({"is_gone": True}, MachineLost, "was deleted, by a user, a drained node or a preemption"),
        ({"is_gone": True, "drained": True}, MachineLost, "because its node node-1 is being drained; a retry"),
        ({"is_gone": True, "conditions": UNREACHABLE}, MachineLost, "is lost with its node node-1, which no longer"),
    ],
)
def test_end_without_a_result_is_explained(changes: dict[str, Any], kind: Any, message: str) -> None:
    changes = dict(changes)
    is_gone, drained = changes.pop("is_gone", False), changes.pop("drained", False)
    changes["conditions"] = [client.V1PodCondition(**each) for each in changes.get("conditions", ())]
    pod = ended(**changes)
    pod.spec.containers[0].resources.limits["memory"] = "8Gi"
    node = client.V1Node(spec=client.V1NodeSpec(unschedulable=drained))
    error = why_it_ended(pod, node, is_gone=is_gone, last_lines=lambda container: f"  its last lines of {container}")
    assert (error and type(error)) == kind and re.search(message, str(error), re.DOTALL)


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        ((403, "exceeded quota: none"), HopsError, "the namespace's quota is exhausted"),
        ((403, "User guest cannot list"), BadInput, "Kubernetes denies it .*the rights that steps as pods need"),
        ((404, 'namespaces "nowhere" not found'), BadInput, 'namespaces "nowhere" not found; create it'),
        ((422, "spec is invalid"), BadInput, "Kubernetes rejects it"),
        ((503, "try later"), HopsError, "Kubernetes answers 503"),
    ],
)
def test_errors_of_the_api_are_explained(error: tuple[int, str], kind: type[HopsError], message: str) -> None:
    refusal = ApiException(error[0], "reason")
    refusal.body = json.dumps({"message": error[1]})
    with pytest.raises(HopsError, match=message) as raised, calling_api("create the pod"):
        raise refusal
    assert type(raised.value) is kind


def test_parameters_larger_than_a_secret_are_refused() -> None:
    with pytest.raises(BadInput, match="a Secret of Kubernetes holds 1,000,000 at most"):
        manifests.step_secret(step_pod(), {"spec.json": "x" * 2_000_000})


def test_connection_chooses_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    options = '{"image": "hops:1", "namespace": "ml"}'
    extra = {"launcher": "kubernetes", "launcher_options": options}
    monkeypatch.setenv("AIRFLOW_CONN_HOPS_DEFAULT", json.dumps({"conn_type": "hops", "extra": extra}))
    hook = RuntimeHook()
    launcher = InfraValidateOperator(task_id="t", model={}, examples={}).chosen_launcher(hook)
    assert isinstance(launcher, KubernetesLauncher) and launcher.environment == "hops:1"
    other = InfraValidateOperator(
        task_id="t", model={}, examples={}, launcher_options={"image": "hops:2"}
    ).chosen_launcher(hook)
    assert other is not None and other.environment == "hops:2"
    prepare = PrepareOperator(task_id="p", prepare="m:f", tables={}, label="x").chosen_launcher(hook)
    assert prepare is not None and prepare.environment == "hops:1"


def test_ranks_of_connection_are_pods_with_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_KUBERNETES_DEFAULT", '{"conn_type": "kubernetes"}')
    extra = {"ranks_conn_id": "kubernetes_default"}
    monkeypatch.setenv("AIRFLOW_CONN_HOPS_DEFAULT", json.dumps({"conn_type": "hops", "extra": extra}))
    operator = HorovodTrainOperator(
        task_id="train",
        train="m:f",
        np=3,
        strategy="parameter_server",
        parameter_servers=1,
        launcher_options={"image": "hops:1"},
    )
    assert isinstance(operator.chosen_launcher(RuntimeHook()), KubernetesLauncher)
    assert operator._where(RuntimeHook()) == {"kind": "kubernetes", "slots": 5}
    search = SearchOperator(
        task_id="s",
        train="m:f",
        space="m:space",
        metric="auc",
        direction="maximize",
    )
    with pytest.raises(BadInput, match="are made with the step, for one training; give the search"):
        search.chosen_launcher(RuntimeHook())


def test_kserve_connection_needs_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    extra = {"serving_kind": "kserve", "serving_kubernetes_conn_id": "kubernetes_absent"}
    monkeypatch.setenv("AIRFLOW_CONN_KSERVE", json.dumps({"conn_type": "hops", "extra": extra}))
    with pytest.raises(BadInput, match="kubernetes_conn_id: connection 'kubernetes_absent' cannot be used"):
        control_services("kserve")


def test_code_of_nested_folders_is_sent_once(tmp_path: Path) -> None:
    (tmp_path / "dags" / "inner" / "__pycache__").mkdir(parents=True)
    for name in ("dags/a.py", "dags/inner/b.py", "dags/inner/__pycache__/b.pyc"):
        (tmp_path / name).write_text("")
    store = ArtifactStore(str(tmp_path / "store"))
    uri, paths = store_code(store, [str(tmp_path / "dags" / "inner"), str(tmp_path / "dags")])
    assert paths == ["0/inner", "0"]
    with store.files.open(uri) as stream:
        assert sorted(zipfile.ZipFile(stream).namelist()) == ["0/a.py", "0/inner/b.py"]
    assert store_code(store, [str(tmp_path / "dags" / "inner"), str(tmp_path / "dags")])[0] == uri


def test_only_imported_modules_are_sent_to_a_pod(tmp_path: Path) -> None:
    files = {
        "a.py": "import helper\n\ndef run(context): ...\n",
        "helper.py": "",
        "b.py": "",
        "data.csv": "x",
        "package/other.py": "",
    }
    for name, text in files.items():
        (tmp_path / "dags" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "dags" / name).write_text(text)
    store, folder = ArtifactStore(str(tmp_path / "store")), str(tmp_path / "dags")

    def archive() -> str:
        spec = StepSpec("a", "a:run", code_paths=(folder,))
        return store_code(store, [folder], needed_modules(spec, tmp_path / "no-runtime"))[0]

    uri = archive()
    with store.files.open(uri) as stream:
        assert sorted(zipfile.ZipFile(stream).namelist()) == ["0/a.py", "0/data.csv", "0/helper.py"]
    (tmp_path / "dags" / "b.py").write_text("changed = True")
    assert archive() == uri


def test_archives_of_code_that_no_pod_used_for_a_week_are_removed(tmp_path: Path) -> None:
    store = ArtifactStore(str(tmp_path / "store"))
    module = tmp_path / "dags" / "a.py"
    module.parent.mkdir()
    uris = []
    for days in (8, 8, 6, 0):
        module.write_text(f"number = {len(uris)}")
        uris.append(store_code(store, [str(module.parent)])[0])
        used = time.time() - days * 86400
        os.utime(uris[-1].removeprefix("file://"), (used, used))
    module.write_text("number = 0")
    assert store_code(store, [str(module.parent)])[0] == uris[0]  # of a new pod
    assert [store.files.exists(uri) for uri in uris] == [True, False, True, True]
