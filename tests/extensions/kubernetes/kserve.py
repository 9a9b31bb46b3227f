"""KServe's part that tests need: its custom resource, and a controller that starts our model servers as its revisions.

The resource has the fields of v1beta1's published API that are written and read here, with their types; a field that it
does not know is dropped, as in KServe. The controller does what KServe's does of Knative's revisions in serverless
mode: a change of the predictor, other than of the canary's share, is a new revision; the canary's share splits the
traffic between the newest and the last one that had all of it, each with an address by its tag, ``latest`` and
``prev``; without a share, the newest revision gets everything once it is ready.
"""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from kubernetes_cluster import KubernetesCluster
from server_process import ServerProcess

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


class Kubernetes:
    """Calls of the API as its administrator."""

    def __init__(self, cluster: KubernetesCluster) -> None:
        self.url = cluster.url
        self._context = ssl.create_default_context(cafile=str(cluster.folder / "pki" / "ca.crt"))

    def call(self, method: str, path: str, body: Any = None) -> Any:
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        request = urllib.request.Request(
            f"{self.url}{path}",
            None if body is None else json.dumps(body).encode(),
            {"Authorization": "Bearer admin-token", "Content-Type": kind},
            method=method,
        )
        try:
            with urllib.request.urlopen(request, context=self._context, timeout=10) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return None
            raise AssertionError(error.read().decode()) from error


class Relay:
    """A port that leads to another one, which can change; then its connections are closed."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._target: int | None = None
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def lead_to(self, target: int | None) -> None:
        if target != self._target:
            self._target = target
            while self._open:
                with contextlib.suppress(OSError):
                    self._open.pop().shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            client, _ = self._listener.accept()
            try:
                server = socket.create_connection(("127.0.0.1", self._target or 1))
            except OSError:
                client.close()
                continue
            self._open += [client, server]
            for ends in ((client, server), (server, client)):
                threading.Thread(target=self._copy, args=ends, daemon=True).start()

    def _copy(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)
        for each in (source, target):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


@dataclass
class Revision:
    """A state of the predictor, and its server."""

    name: str
    predictor: Mapping[str, Any]
    server: ServerProcess
    is_ready: bool = False


@dataclass
class Service:
    """The revisions of an InferenceService, oldest first, and the one that last had all the traffic."""

    revisions: list[Revision] = field(default_factory=list)
    rolled_out: Revision | None = None
    number: int = 0


class Controller(threading.Thread):
    """Starts a model server for each revision, and reports them as KServe does.

    Attributes:
        addresses: Of the two tags, for one model.
    """

    def __init__(self, kubernetes: Kubernetes, namespace: str, python: Path, folder: Path) -> None:
        super().__init__(daemon=True)
        self._kubernetes, self._python, self._folder = kubernetes, python, folder
        self.path = f"{GROUP}/namespaces/{namespace}/inferenceservices"
        self._relays = {tag: Relay() for tag in ("latest", "prev")}
        self.addresses = [f"127.0.0.1:{relay.port}" for relay in self._relays.values()]
        self._services: dict[str, Service] = {}
        self._stopping = threading.Event()
        self.error: BaseException | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopping.set()
        self.join()
        for service in self._services.values():
            self._keep(service, [])
        assert self.error is None, self.error

    def run(self) -> None:
        try:
            while not self._stopping.wait(0.1):
                items = {item["metadata"]["name"]: item for item in self._kubernetes.call("GET", self.path)["items"]}
                for name in self._services.keys() - items.keys():
                    self._keep(self._services.pop(name), [])
                for name, item in items.items():
                    self._reconcile(name, self._services.setdefault(name, Service()), item)
        except BaseException as error:
            self.error = error

    def _reconcile(self, name: str, service: Service, item: Mapping[str, Any]) -> None:
        predictor = dict(item["spec"]["predictor"])
        percent = predictor.pop("canaryTrafficPercent", None)
        if not service.revisions or service.revisions[-1].predictor != predictor:
            service.number += 1
            service.revisions.append(self._start(name, service.number, predictor))
        newest = service.revisions[-1]
        newest.is_ready = newest.is_ready or self._answers(name, newest.server)
        ready = [revision for revision in service.revisions if revision.is_ready]
        latest = ready[-1] if ready else None
        traffic = []
        if latest is not None:
            stable = service.rolled_out
            if percent is None or stable is None:
                service.rolled_out = latest
                self._lead(latest, None)
                self._keep(service, [latest, newest])
                traffic = [_target(latest, 100, "latest")]
            else:
                self._lead(latest, stable)
                self._keep(service, [stable, latest, newest])
                traffic = [_target(latest, percent, "latest"), _target(stable, 100 - percent, "prev")]
        self._report(name, item, newest, latest, service.rolled_out, traffic)

    def _start(self, name: str, number: int, predictor: Mapping[str, Any]) -> Revision:
        revision = f"{name}-predictor-{number:05}"
        path = predictor["model"]["storageUri"].removeprefix("file://")  # KServe copies it to the pod
        flags = {"model_name": name, "model_base_path": path, "file_system_poll_wait_seconds": 0.5}
        return Revision(revision, predictor, ServerProcess(self._python, self._folder / revision, flags).start())

    def _answers(self, name: str, server: ServerProcess) -> bool:
        if not server.ready_file.exists():
            return False
        if server.ports["port"] == 0:
            server.wait_until_ready()
        return bool(server.available(name))

    def _lead(self, latest: Revision, stable: Revision | None) -> None:
        self._relays["latest"].lead_to(latest.server.ports["port"])
        self._relays["prev"].lead_to(None if stable is None else stable.server.ports["port"])

    def _keep(self, service: Service, revisions: list[Revision]) -> None:
        for revision in [each for each in service.revisions if each not in revisions]:
            revision.server.stop()
            service.revisions.remove(revision)

    def _report(
        self,
        name: str,
        item: Mapping[str, Any],
        newest: Revision,
        latest: Revision | None,
        stable: Revision | None,
        traffic: list[dict[str, Any]],
    ) -> None:
        names = {"latestCreatedRevision": newest, "latestReadyRevision": latest, "latestRolledoutRevision": stable}
        status: dict[str, Any] = {
            "components": {
                "predictor": {
                    **{key: revision.name for key, revision in names.items() if revision},
                    "traffic": traffic,
                }
            },
            "conditions": [{"type": "Ready", "status": str(newest is latest)}],
        }
        log = newest.server.log() if newest is not latest else ""
        if failed := [line for line in log.splitlines() if "cannot be loaded" in line or "failed" in line.lower()]:
            status["modelStatus"] = {"lastFailureInfo": {"message": failed[-1]}}
        if status != item.get("status"):
            self._kubernetes.call("PATCH", f"{self.path}/{name}/status", {"status": {"modelStatus": None, **status}})


def _target(revision: Revision, percent: int, tag: str) -> dict[str, Any]:
    return {"revisionName": revision.name, "percent": percent, "tag": tag, "latestRevision": tag == "latest"}


@contextlib.contextmanager
def kserve(cluster: KubernetesCluster, namespace: str, python: Path, folder: Path) -> Iterator[Controller]:
    """Applies the custom resource, and runs the controller for a new namespace."""
    cluster.apply(CUSTOM_RESOURCE, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    cluster.kubectl("wait", "--for=condition=Established", "crd/inferenceservices.serving.kserve.io", "--timeout=30s")
    with Controller(Kubernetes(cluster), namespace, python, folder) as controller:
        yield controller
