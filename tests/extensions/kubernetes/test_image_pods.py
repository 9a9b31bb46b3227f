"""Steps as pods of the image of the runtime environment."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from containers import RUNTIME_IMAGE
from kubernetes_cluster import KubernetesCluster
from step_runner import REPOSITORY, StepRunner

from airflow_hops.extensions.kubernetes.runner.launcher import KubernetesLauncher
from tests.extensions.kubernetes.kubernetes_pods import Pods, pods_in

pytestmark = [pytest.mark.runtime, pytest.mark.scheduled(part="images"), pytest.mark.xdist_group("images")]


@pytest.fixture
def image_pods(node: KubernetesCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pods]:
    """Pods of the image that see the test's store, as root, whose store it is."""
    (tmp_path / "store").mkdir()
    mount = {"name": "store", "mountPath": str(tmp_path / "store")}
    container = {"name": "base", "image": f"{RUNTIME_IMAGE}:latest", "volumeMounts": [mount]}
    volume = {"name": "store", "hostPath": {"path": str(tmp_path / "store")}}
    spec = {"containers": [container], "volumes": [volume], "securityContext": {"runAsUser": 0}}
    yield from pods_in(node, {"spec": spec}, monkeypatch)


def test_step_is_a_pod_of_the_image(image_pods: Pods, runtime: Path, tmp_path: Path) -> None:
    run_step = StepRunner(str(tmp_path / "store"), runtime)
    launcher = KubernetesLauncher(Path("/opt/hops-runtime"), **image_pods.options)
    code = tmp_path / "dags"
    code.mkdir()
    shutil.copy(REPOSITORY / "tests" / "extensions" / "kubernetes" / "pod_steps.py", code)
    (code / "neighbour.py").write_text("WORD = 'beside the DAG'\n")
    value = run_step("pod_steps:where", launcher=launcher, code_paths=(str(code),))
    assert value["python"] == "/opt/hops-runtime" and value["dag"] == "tests"
    assert not value["package"].startswith("/opt")  # the worker's version of it, not the image's
