"""Deployments to KServe's custom resource in a real Kubernetes, without KServe: what is refused, and by whom.

What is written for canaries and rollbacks, and objects of others, are tested in ``tests/ml/extensions/kubernetes``. The
resource has the fields of v1beta1's published API that are written and read, with their types; a field that it does not
know is dropped, as in KServe.
"""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kubernetes_cluster import KubernetesCluster
from served_models import Pipeline

from airflow_hops.core.errors import StepFailed
from airflow_hops.hooks.model_server import ModelServerHook, control_services

pytestmark = [pytest.mark.runtime, pytest.mark.scheduled(part="kubernetes")]
GROUP = "/apis/serving.kserve.io/v1beta1"


def _object(required: tuple[str, ...] = (), /, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, **({"required": list(required)} if required else {})}


_STRING, _INTEGER = {"type": "string"}, {"type": "integer", "format": "int64"}
_ANY = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
_MODEL = _object(
    ("modelFormat",),
    modelFormat=_object(("name",), name=_STRING, version=_STRING),
    protocolVersion=_STRING,
    runtime=_STRING,
    storageUri=_STRING,
    storage=_ANY,
    args={"type": "array", "items": _STRING},
    resources=_ANY,
)
_PREDICTOR = _object(
    canaryTrafficPercent=_INTEGER,
    minReplicas={"type": "integer", "format": "int32"},
    maxReplicas=_INTEGER,
    serviceAccountName=_STRING,
    timeout=_INTEGER,
    model=_MODEL,
)
CUSTOM_RESOURCE = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "inferenceservices.serving.kserve.io"},
    "spec": {
        "group": "serving.kserve.io",
        "scope": "Namespaced",
        "names": {
            "kind": "InferenceService",
            "listKind": "InferenceServiceList",
            "plural": "inferenceservices",
            "singular": "inferenceservice",
            "shortNames": ["isvc"],
        },
        "versions": [
            {
                "name": "v1beta1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": _object(spec=_object(("predictor",), predictor=_PREDICTOR), status=_ANY)},
            }
        ],
    },
}


Call = Callable[..., Any]
Deploy = Callable[..., Any]


@pytest.fixture(scope="module")
def call(kubernetes: KubernetesCluster) -> Call:
    """Calls the API as its administrator; it has the custom resource."""
    kubernetes.apply(CUSTOM_RESOURCE)
    crd = "crd/inferenceservices.serving.kserve.io"
    kubernetes.kubectl("wait", "--for=condition=Established", crd, "--timeout=30s")
    context = ssl.create_default_context(cafile=str(kubernetes.folder / "pki" / "ca.crt"))

    def call(method: str, path: str, body: Any = None) -> Any:
        headers = {"Authorization": "Bearer admin-token", "Content-Type": "application/json"}
        content = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{kubernetes.url}{path}", content, headers, method=method)
        try:
            with urllib.request.urlopen(request, context=context, timeout=10) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return None
            raise AssertionError(error.read().decode()) from error

    return call


@pytest.fixture
def namespace(call: Call) -> str:
    name = f"models-{uuid.uuid4().hex[:6]}"
    call("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    return name


@pytest.fixture
def deploy(
    kubernetes: KubernetesCluster, pipeline: Pipeline, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Deploy:
    """Deploys a model to KServe, behind the pipeline's server as the gateway; takes changes of the connection."""

    def run(user: str = "admin-token", **changes: Any) -> None:
        config = json.loads(kubernetes.kubectl("config", "view", "--raw", "-o", "json"))
        config["users"][0]["user"] = {"token": user}
        (tmp_path / user).write_text(json.dumps(config))
        cluster = {"conn_type": "kubernetes", "extra": {"kube_config_path": str(tmp_path / user)}}
        monkeypatch.setenv("AIRFLOW_CONN_KUBERNETES_TEST", json.dumps(cluster))
        extra = {
            "kind": "kserve",
            "kubernetes_conn_id": "kubernetes_test",
            "namespace": namespace,
            "predictor": {"serviceAccountName": "models", "model": {"runtime": "airflow-hops"}},
            "base_path": str(tmp_path / "models"),
            "server_base_path": f"file://{tmp_path}/models",
            **changes,
        }
        extra = {f"serving_{name}": value for name, value in extra.items()}
        monkeypatch.setenv("AIRFLOW_CONN_KSERVE", json.dumps({"conn_type": "hops", "extra": extra}))
        services = ModelServerHook("kserve").services | control_services("kserve")
        services |= {key: pipeline.server.services[key] for key in ("serving_port", "serving_rest_port")}
        pipeline.deploy(pipeline.model("first"), services=services, available_timeout_s=3.0)

    return run


def test_model_that_does_not_become_available_leaves_no_object(deploy: Deploy, call: Call, namespace: str) -> None:
    with pytest.raises(StepFailed, match=r"is not available after 3 s.*InferenceService '.*': no status yet"):
        deploy()
    assert call("GET", f"{GROUP}/namespaces/{namespace}/inferenceservices")["items"] == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"namespace": "nowhere"},
            r'namespaces \\?"nowhere\\?" not found.*correct the connection.s .serving_namespace',
        ),
        ({"predictor": {"minReplicas": "many"}}, r"spec.predictor.minReplicas.*integer"),
        ({"user": "guest-token"}, r'User \\?"guest\\?" cannot list .*a role with the verbs get, list, create, patch'),
    ],
)
def test_refusals_are_bad_input(deploy: Deploy, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(StepFailed, match=message) as caught:
        deploy(**changes)
    assert not caught.value.retryable and "-token" not in str(caught.value)
