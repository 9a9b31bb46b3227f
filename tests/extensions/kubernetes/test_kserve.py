"""Deployments and rollouts to KServe: the API of a real Kubernetes, and a controller of the tests (``kserve.py``)."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from kubernetes_cluster import KubernetesCluster
from served_models import ConnectedServer, Pipeline
from waiting import wait_for

from airflow_hops.core.contract.artifacts import BadInput
from airflow_hops.core.contract.capture_layout import rows_file_pattern
from airflow_hops.hooks.model_server import model_server_services
from airflow_hops.hooks.runtime import StepFailed
from tests.extensions.gateway.test_rollout_gateway import Client
from tests.extensions.kubernetes.kserve import Controller, Kubernetes, kserve

pytestmark = pytest.mark.runtime
UNHURRIED = {"available_timeout_s": 300.0}
"""Each version starts a server; its time is not what is tested."""


class Gateway(ConnectedServer):
    """The bundled server in front of the two addresses of an InferenceService."""

    def __init__(self, python: Path, folder: Path, addresses: list[str]) -> None:
        super().__init__(python, folder)
        self.flags = {
            "upstream": ",".join(addresses),
            "traffic_config_file": self.traffic_file,
            "capture_base_path": self.capture_path,
            "capture_mode": "all",
        }
        self.of_connection: dict[str, str] = {}

    @property
    def services(self) -> dict[str, str]:
        return self.of_connection

    def connection(self, **changes: Any) -> dict[str, Any]:
        extra = {
            "kind": "kserve",
            "kubernetes_conn_id": "kubernetes_test",
            "predictor": {"serviceAccountName": "models", "model": {"runtime": "airflow-hops"}},
            "rest_port": self.ports["rest_api_port"],
            "base_path": str(self.base_path),
            "server_base_path": f"file://{self.base_path}",
            "capture_path": str(self.capture_path),
        }
        return {
            "conn_type": "model_server",
            "host": "127.0.0.1",
            "port": self.ports["port"],
            "extra": {**extra, **changes},
        }


@dataclass
class KServe:
    """A namespace with KServe, and a pipeline whose models are served there."""

    pipeline: Pipeline
    gateway: Gateway
    controller: Controller
    kubernetes: Kubernetes

    def predictor(self) -> dict[str, Any] | None:
        """``spec.predictor`` of the pipeline's model."""
        item = self.kubernetes.call("GET", f"{self.controller.path}/{self.pipeline.name}")
        return None if item is None else dict(item["spec"]["predictor"])

    def uri(self, version: int) -> str:
        return f"file://{self.gateway.base_path}/{self.pipeline.name}/{version}"


@pytest.fixture(scope="module")
def kubernetes_connection(kubernetes: KubernetesCluster) -> Iterator[None]:
    """A connection of Airflow's provider to the cluster, as its administrator."""
    with pytest.MonkeyPatch.context() as patch:
        connection = {"conn_type": "kubernetes", "extra": {"kube_config_path": str(kubernetes.kubeconfig)}}
        patch.setenv("AIRFLOW_CONN_KUBERNETES_TEST", json.dumps(connection))
        yield


def connect(monkeypatch: pytest.MonkeyPatch, connection: dict[str, Any]) -> dict[str, str]:
    """The services of a connection, as a step gets them."""
    monkeypatch.setenv("AIRFLOW_CONN_KSERVE", json.dumps(connection))
    return model_server_services("kserve")


@pytest.fixture
def served(
    kubernetes: KubernetesCluster,
    kubernetes_connection: None,
    pipeline: Pipeline,
    runtime_python: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[KServe]:
    namespace = f"models-{uuid.uuid4().hex[:6]}"
    with kserve(kubernetes, namespace, runtime_python, tmp_path / "revisions") as controller:
        gateway = Gateway(runtime_python, tmp_path / "gateway", controller.addresses)
        gateway.start()
        gateway.wait_until_ready()
        gateway.of_connection = connect(monkeypatch, gateway.connection(namespace=namespace))
        yield KServe(replace(pipeline, server=gateway), gateway, controller, Kubernetes(kubernetes))
        gateway.stop()


def test_canary_is_promoted_rolled_back_and_undeployed_by_its_inference_service(served: KServe) -> None:
    pipeline, gateway, name = served.pipeline, served.gateway, served.pipeline.name
    model = {"modelFormat": {"name": "tensorflow"}, "protocolVersion": "grpc-v1", "runtime": "airflow-hops"}
    stable = {"serviceAccountName": "models", "model": {**model, "storageUri": served.uri(1)}}
    assert pipeline.deploy(pipeline.model("first"), **UNHURRIED).properties["mode"] == "champion"
    assert served.predictor() == stable

    with Client(gateway, name) as client:
        deployment = pipeline.deploy(pipeline.model("second"), canary_percent=25, **UNHURRIED)
        canary = {**stable, "model": {**model, "storageUri": served.uri(2)}}
        assert served.predictor() == {**canary, "canaryTrafficPercent": 25}
        assert gateway.traffic(name) == {1: 75, 2: 25}
        rollout = pipeline.rollout(deployment, timeout_s=300.0)
        assert rollout.properties["decision"] == "promoted", rollout.properties
        assert served.predictor() == canary
        wait_for(lambda: gateway.traffic(name) == {2: 100}, "all the traffic")
    assert client.asked > 100 and client.failed == 0
    gateway.post("/v1/capture:flush", {})
    files = list((gateway.capture_path / name).glob(rows_file_pattern()))
    assert {re.search(r"-v(\d+)-", path.name)[1] for path in files} == {"1", "2"}  # type: ignore[index]
    assert sum(pq.read_metadata(path).num_rows for path in files) == client.asked

    # A canary that a person rolls back, and then its champion: both are new revisions of older versions.
    pipeline.deploy(pipeline.model("third"), canary_percent=10, **UNHURRIED)
    assert served.predictor() == {**canary, "model": {**model, "storageUri": served.uri(3)}, "canaryTrafficPercent": 10}
    with Client(gateway, name) as client:
        assert pipeline.decide("roll_back", to_version=None, run_id="first")["traffic"] == {"2": 100}
        assert served.predictor() == {**canary, "canaryTrafficPercent": 0}
        assert pipeline.decide("roll_back", to_version=None, run_id="second", **UNHURRIED)["traffic"] == {"1": 100}
        assert served.predictor() == stable
    assert client.failed == 0
    assert pipeline.decide("undeploy", version=None, force=True)["served"] == []
    assert served.predictor() is None


def test_model_that_does_not_load_leaves_no_inference_service(served: KServe) -> None:
    pipeline = served.pipeline
    with pytest.raises(StepFailed, match=rf"is not available after 8 s.*InferenceService '{pipeline.name}': .*"):
        pipeline.deploy(pipeline.model("broken"), available_timeout_s=8.0)
    assert served.predictor() is None


def test_foreign_objects_and_invalid_fields_are_bad_input(served: KServe, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline, gateway, namespace = served.pipeline, served.gateway, served.gateway.services["serving_namespace"]
    model = pipeline.model("first")

    def refused(message: str, **changes: Any) -> None:
        services = connect(monkeypatch, gateway.connection(**{"namespace": namespace, **changes}))
        with pytest.raises(StepFailed, match=message) as caught:
            pipeline.deploy(model, services=services)
        assert not caught.value.retryable
        assert services["serving_kubernetes_private_key"] not in str(caught.value)

    refused(r"namespaces \\?\"nowhere\\?\" not found.*correct the connection's 'namespace'", namespace="nowhere")
    refused(r"spec.predictor.minReplicas.*integer", predictor={"minReplicas": "many"})
    refused("is the local folder .* which pods do not see; expected its address for KServe", server_base_path="")
    long = r"'a{47}' \(47 characters\), which KServe does not accept; expected at most 46 lower-case letters, digits"
    for name, message in {"a" * 47: long, "Flights_2": r"'Flights_2' \(9 characters\), which KServe does not"}.items():
        with pytest.raises(StepFailed, match=message):
            replace(pipeline, name=name).deploy(model)

    other = {"metadata": {"name": pipeline.name}, "spec": {"predictor": {"model": {"modelFormat": {"name": "onnx"}}}}}
    kind = {"apiVersion": "serving.kserve.io/v1beta1", "kind": "InferenceService"}
    path = f"/apis/serving.kserve.io/v1beta1/namespaces/{namespace}-other/inferenceservices"
    served.kubernetes.call("POST", "/api/v1/namespaces", {"metadata": {"name": f"{namespace}-other"}})
    served.kubernetes.call("POST", path, {**kind, **other})
    refused("belongs to someone else, with the store None; expected 'file://", namespace=f"{namespace}-other")
    assert served.kubernetes.call("GET", f"{path}/{pipeline.name}")["spec"] == other["spec"]


def test_account_without_rights_and_cluster_without_kserve_are_bad_input(
    kubernetes: KubernetesCluster, pipeline: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guest = json.loads(kubernetes.kubectl("config", "view", "--raw", "-o", "json"))
    guest["users"][0]["user"] = {"token": "guest-token"}
    (tmp_path / "guest").write_text(json.dumps(guest))
    connection = {"conn_type": "kubernetes", "extra": {"kube_config_path": str(tmp_path / "guest")}}
    monkeypatch.setenv("AIRFLOW_CONN_KUBERNETES_TEST", json.dumps(connection))
    gateway = Gateway(Path("python"), tmp_path / "gateway", [])
    services = {**connect(monkeypatch, gateway.connection()), **port_of(pipeline)}
    assert services["serving_kubernetes_token"] == "guest-token"
    denied = r'User \\?"guest\\?" cannot list .*a role with the verbs get, list, create, patch and delete'
    with pytest.raises(StepFailed, match=denied) as caught:
        pipeline.deploy(pipeline.model("first"), services=services)
    assert not caught.value.retryable

    services["serving_kubernetes_token"] = "admin-token"
    services["serving_kubernetes_url"] += "/apis/none"  # as one whose API does not know KServe's group
    with pytest.raises(StepFailed, match="does not know the kind InferenceService, v1beta1: install KServe") as caught:
        pipeline.deploy(pipeline.model("first"), services=services)
    assert not caught.value.retryable


def port_of(pipeline: Pipeline) -> dict[str, str]:
    """The address of a server that answers."""
    return {name: pipeline.server.services[name] for name in ("serving_port", "serving_rest_port")}


def test_connection_needs_a_cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    connection = {"conn_type": "model_server", "extra": {"kind": "kserve", "kubernetes_conn_id": "kubernetes_absent"}}
    with pytest.raises(BadInput, match="kubernetes_conn_id: connection 'kubernetes_absent' cannot be used"):
        connect(monkeypatch, connection)
