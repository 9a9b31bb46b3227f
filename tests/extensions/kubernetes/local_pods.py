"""Kubernetes' API for pods that are processes of this machine: what the launcher asks for, without a cluster."""

from __future__ import annotations

import itertools
import json
import subprocess
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from kubernetes import client
from kubernetes.client.rest import ApiException

from tests.extensions.kubernetes.kubernetes_pods import Pods


class LocalPods(Pods):
    """Pods of the launcher, each a process.

    Args:
        folder: Where Secrets and logs lie.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(cast(Any, None), "default", {"image": "local"})
        self.folder = folder
        self.pods: dict[str, client.V1Pod] = {}
        self.processes: dict[str, subprocess.Popen[str]] = {}
        self._uids = itertools.count()

    def list(self, selector: str = "") -> list[dict[str, Any]]:
        items = self.list_namespaced_pod(self.namespace, selector).items
        return [client.ApiClient().sanitize_for_serialization(pod) for pod in items]

    def create_namespaced_secret(self, namespace: str, secret: client.V1Secret) -> None:
        (self.folder / secret.metadata.name).mkdir()
        for name, text in secret.string_data.items():
            (self.folder / secret.metadata.name / name).write_text(text)

    def patch_namespaced_secret(self, name: str, namespace: str, change: Any) -> None:
        """Does nothing: the Secret stays with the folder."""

    def create_namespaced_pod(self, namespace: str, pod: client.V1Pod) -> client.V1Pod:
        """Starts the program of the pod's container."""
        name, (container,) = pod.metadata.name, pod.spec.containers
        pod.metadata.uid, pod.metadata.creation_timestamp = str(next(self._uids)), datetime.now(UTC)
        pod.spec.node_name = "local"
        order = self.folder / name / "pod.json"
        (self.folder / name / "step").mkdir()  # a volume of the pod's own
        order.write_text(json.dumps({**json.loads(order.read_text()), "folder": str(self.folder / name / "step")}))
        process = subprocess.Popen(
            [container.command[0], "-P", self.folder / name / "start.py"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.pods[name], self.processes[name] = pod, process
        threading.Thread(target=self._write_log, args=(name, process), daemon=True).start()
        return self.read_namespaced_pod(name, namespace)

    def _write_log(self, name: str, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with (self.folder / name / "log").open("w", buffering=1) as log:
            for line in process.stdout:
                log.write(f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%fZ} {line}")

    def read_namespaced_pod(self, name: str, namespace: str) -> client.V1Pod:
        if name not in self.pods:
            raise ApiException(404, "Not Found")
        pod, code = self.pods[name], self.processes[name].poll()
        begun = pod.metadata.creation_timestamp
        state = client.V1ContainerState(running=client.V1ContainerStateRunning(started_at=begun))
        if code is not None:
            ended = client.V1ContainerStateTerminated(exit_code=code, started_at=begun, finished_at=datetime.now(UTC))
            state = client.V1ContainerState(terminated=ended)
        phase = "Running" if code is None else "Failed" if code else "Succeeded"
        status = client.V1ContainerStatus(
            name="base", image="local", image_id="", ready=True, restart_count=0, state=state
        )
        pod.status = pod.status or client.V1PodStatus(phase=phase, container_statuses=[status])
        if pod.status.phase == "Running":
            pod.status.phase, pod.status.container_statuses = phase, [status]
        return pod

    def list_namespaced_pod(self, namespace: str, label_selector: str) -> Any:
        wanted = dict(each.split("=") for each in label_selector.split(",") if "=" in each)
        pods = [self.read_namespaced_pod(name, namespace) for name in list(self.pods)]
        return SimpleNamespace(items=[pod for pod in pods if wanted.items() <= pod.metadata.labels.items()])

    def read_node(self, name: str) -> client.V1Node:
        return client.V1Node(spec=client.V1NodeSpec())

    def list_namespaced_event(self, *arguments: Any, **options: Any) -> Any:
        return SimpleNamespace(items=[])

    def delete_namespaced_pod(self, name: str, namespace: str, body: Any = None) -> None:
        self.read_namespaced_pod(name, namespace)
        del self.pods[name]
        self.processes[name].terminate()

    def read_namespaced_pod_log(self, name: str, namespace: str, *, follow: bool = False, **options: Any) -> Any:
        """Returns the log's lines so far; the launcher asks again until the pod has ended."""
        log = self.folder / name / "log"

        def stream(**_: Any) -> Iterator[bytes]:
            text = log.read_text() if log.exists() else ""
            yield text[: text.rfind("\n") + 1].encode()

        return SimpleNamespace(stream=stream)

    def end(self) -> None:
        """Ends all processes."""
        for process in list(self.processes.values()):
            process.kill()
            process.wait()
