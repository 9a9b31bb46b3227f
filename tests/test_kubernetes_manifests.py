"""Objects of a step in Kubernetes are valid for current versions, and bad templates are rejected, without a cluster."""

from __future__ import annotations

import json
import re
import zipfile
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
from kubernetes import client

from airflow_hops.core.contract.artifacts import BadInput, Producer
from airflow_hops.core.store import ArtifactStore
from airflow_hops.hooks.runtime import RuntimeHook
from airflow_hops.launchers.kubernetes import manifests
from airflow_hops.launchers.kubernetes.archives import store_code
from airflow_hops.launchers.kubernetes.launcher import KubernetesLauncher
from airflow_hops.operators import InfraValidateOperator, PrepareOperator

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
        labels=manifests.labels_of(producer),
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


def test_step_keeps_what_the_user_sets() -> None:
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


@pytest.mark.parametrize("dag_id", ["flights", "Größe_der.Flüge_", "__", "x" * 250, "9-lives."])
def test_names_are_legal(dag_id: str) -> None:
    producer = Producer(dag_id, "manual__2026-01-01T00:00:00+00:00", "t" * 200)
    assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name := manifests.pod_name(producer)) and len(name) <= 60
    for value in manifests.labels_of(producer).values():
        assert re.fullmatch(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?", value) and len(value) <= 63


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (
            {"spec": {"containers": [{"name": "base", "resource": {}, "command": []}], "nodeselector": {"a": "b"}}},
            "no field 'spec.nodeselector'",
        ),
        ({"spec": {"containers": [{"name": "base", "command": ["sh"]}]}}, "the first container has 'command'"),
        ({"spec": {"containers": [], "restartPolicy": "Always"}}, "restartPolicy is 'Always', expected 'Never'"),
        (["spec"], "is a list, expected a pod"),
    ],
)
def test_bad_override(value: Any, error: str) -> None:
    with pytest.raises(BadInput, match=re.escape(error)):
        manifests.read_pod(value, "pod_override")


def test_bad_template_and_image(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"pod_template_file .*missing.yaml: .*No such file"):
        KubernetesLauncher(tmp_path, pod_template_file=str(tmp_path / "missing.yaml"))
    with pytest.raises(BadInput, match="there is no image for the step's pod"):
        KubernetesLauncher(tmp_path)


def test_order_larger_than_secret() -> None:
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


def test_code_of_nested_folders_travels_once(tmp_path: Path) -> None:
    (tmp_path / "dags" / "inner" / "__pycache__").mkdir(parents=True)
    for name in ("dags/a.py", "dags/inner/b.py", "dags/inner/__pycache__/b.pyc"):
        (tmp_path / name).write_text("")
    store = ArtifactStore(str(tmp_path / "store"))
    uri, paths = store_code(store, [str(tmp_path / "dags" / "inner"), str(tmp_path / "dags")])
    assert paths == ["0/inner", "0"]
    with store.files.open(uri) as stream:
        assert sorted(zipfile.ZipFile(stream).namelist()) == ["0/a.py", "0/inner/b.py"]
    assert store_code(store, [str(tmp_path / "dags" / "inner"), str(tmp_path / "dags")])[0] == uri
