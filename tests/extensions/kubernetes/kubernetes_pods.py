"""Steps as pods of the test's Kubernetes, in an image without anything: they see this machine's runtime environment."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from kubernetes_cluster import BUSYBOX, KubernetesCluster
from waiting import wait_for

_NUMBERS = itertools.count()


def machine_pod(runtime: Path, *folders: Path) -> dict[str, Any]:
    """A pod that sees this machine's programs and the runtime environment, and may write to some folders."""
    python = (runtime / "bin" / "python").resolve().parents[1]
    places = [
        "/usr",
        "/lib",
        "/lib64",
        "/etc/alternatives",
        *map(str, Path("/etc").glob("java-*-openjdk")),
        "/etc/passwd",
        str(python),
        str(runtime),
    ]
    paths = {place: True for place in places if Path(place).exists() and not place.startswith("/usr/")}
    paths |= {str(folder): False for folder in folders}
    volumes = [{"name": f"host-{n}", "hostPath": {"path": path}} for n, path in enumerate(paths)]
    mounts = [
        {"name": f"host-{n}", "mountPath": path, "readOnly": only} for n, (path, only) in enumerate(paths.items())
    ]
    return {"spec": {"containers": [{"name": "base", "image": BUSYBOX, "volumeMounts": mounts}], "volumes": volumes}}


@dataclass
class Pods:
    """A namespace of the cluster for the pods of one test.

    Attributes:
        options: Options of the launcher.
    """

    cluster: KubernetesCluster
    namespace: str
    options: dict[str, Any] = field(default_factory=dict)

    def list(self, selector: str = "airflow-hops/role") -> list[dict[str, Any]]:
        """Returns the pods of steps and ranks, or of another selector."""
        path = f"/api/v1/namespaces/{self.namespace}/pods?labelSelector={selector}"
        return list((self.cluster.get(path) or {"items": []})["items"])

    def wait_for(self, phase: str, selector: str = "airflow-hops/role=step") -> dict[str, Any]:
        """Waits until a pod of a selector is in a phase, and returns it."""
        wait_for(
            lambda: any(pod["status"]["phase"] == phase for pod in self.list(selector)),
            lambda: json.dumps([pod["status"] for pod in self.list(selector)], indent=1),
            60,
        )
        return next(pod for pod in self.list(selector) if pod["status"]["phase"] == phase)

    def wait_until_gone(self) -> None:
        """Waits until no pod or Secret of a step is left."""
        wait_for(lambda: not self.list(), lambda: str(self.list()), 60)
        secrets = f"/api/v1/namespaces/{self.namespace}/secrets?labelSelector=airflow-hops/role"
        wait_for(lambda: not self.cluster.get(secrets)["items"], "the Secrets' removal", 60)


@pytest.fixture
def pods(
    kubernetes: KubernetesCluster, runtime: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Pods]:
    """Pods in a namespace of the test's own, which see the test's folder."""
    (tmp_path / "store").mkdir(exist_ok=True)
    yield from pods_in(kubernetes, machine_pod(runtime, tmp_path / "store"), monkeypatch)


def pods_in(cluster: KubernetesCluster, override: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pods]:
    """Makes a namespace and its connection, and removes the namespace."""
    namespace = f"steps-{next(_NUMBERS)}"
    cluster.kubectl("create", "namespace", namespace)
    accounts = f"/api/v1/namespaces/{namespace}/serviceaccounts/default"
    wait_for(lambda: cluster.get(accounts), "the service account")
    extra = {"kube_config_path": str(cluster.kubeconfig), "namespace": namespace}
    monkeypatch.setenv("AIRFLOW_CONN_KUBERNETES_DEFAULT", json.dumps({"conn_type": "kubernetes", "extra": extra}))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    yield Pods(cluster, namespace, {"pod_override": override})
    cluster.kubectl("delete", "namespace", namespace, "--wait=false")


class Background:
    """A function in a thread that does not keep the session from ending."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self._result: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(function,), daemon=True)
        self._thread.start()

    def _run(self, function: Callable[[], Any]) -> None:
        try:
            self._result = function()
        except BaseException as error:
            self._error = error

    def done(self) -> bool:
        return not self._thread.is_alive()

    def result(self, timeout_s: float) -> Any:
        """Waits for the end; returns the function's result, or raises its error."""
        wait_for(self.done, "the end of the function", timeout_s)
        if self._error is not None:
            raise self._error
        return self._result
