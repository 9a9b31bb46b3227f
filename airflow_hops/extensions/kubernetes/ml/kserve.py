"""KServe: each model is an ``InferenceService``, whose newest revision may be a canary with a share of the traffic.

The version folders, the labels and the versions of the two revisions are annotations of the object. Requests come
through the bundled server as a gateway, in front of the revisions' addresses: it counts and captures by version, which
KServe does not. The object gets the same shares, for clients that ask it directly.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self
from urllib.parse import urlsplit

from airflow_hops.core.errors import BadInput, HopsError
from airflow_hops.core.names import check_known
from airflow_hops.core.serving_api import config
from airflow_hops.core.serving_api.answers import ModelServerError, ModelVersion
from airflow_hops.core.serving_api.rest_client import RestClient
from airflow_hops.core.serving_api.server_address import ServerAddress
from airflow_hops.core.serving_api.tls_files import TlsFiles
from airflow_hops.core.steps.protocol import json_object
from airflow_hops.core.steps.shared_places import SharedPlaces
from airflow_hops.core.store import ArtifactStore
from airflow_hops.ml.model_server.server import ModelServer, traffic_of
from airflow_hops.ml.model_server.steering import TrafficShares
from airflow_hops.ml.model_server.version_folders import VersionFolders, own_folders

_OWNER_LABEL, _OWNER = "app.kubernetes.io/managed-by", "airflow-hops"
_CONFIG, _REVISIONS, _STORE = "airflow-hops/config", "airflow-hops/revisions", "airflow-hops/store"
_TAGS = "serving.kserve.io/enable-tag-routing"
"""Annotation that gives each of the two revisions an address."""
KNATIVE, STANDARD = "Knative", "Standard"
"""KServe's deployment modes: canaries are revisions of Knative, or entries of ``spec.canary``."""
_SLOTS = ("blue", "green")
"""Names of predictors in the standard mode, which champion and canary have in turn, so that addresses stay."""

_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_NAME_CHARACTERS = 63 - len("latest-") - len("-predictor")
"""KServe makes a DNS label of the tag or predictor's name, the name and the component."""

_FORMATS = {"SavedModel": "tensorflow", "ONNX": "onnx", "scikit-learn": "sklearn"}
"""KServe's name of a format, by ours; others are in lower case."""


@dataclass(frozen=True)
class KServeServer(ModelServer):
    """A gateway to KServe, which has revisions for the champion and the canary only."""

    configs: InferenceServices
    keeps_former: ClassVar[bool] = False

    @classmethod
    def connect(cls, at: ServerAddress, services: Mapping[str, str], store: ArtifactStore) -> Self:
        """Returns the gateway at an address; see :meth:`airflow_hops.ml.model_server.server.ModelServer.connect`."""
        places, folders = own_folders(services, store)
        mode = services.get("serving_deployment_mode") or KNATIVE
        check_known("connection field 'serving_deployment_mode'", mode, (KNATIVE, STANDARD))
        objects = (InferenceServices if mode == KNATIVE else CanaryServices)(services, places, folders, store.root)
        return cls(at, places, store, folders, objects, KServeTraffic(traffic_of(at, places), objects))

    def status(self, model_name: str, version: int | None = None) -> list[ModelVersion]:
        """Returns the states of versions; none if the gateway does not know the model's state.

        Raises:
            BadInput: the model's name cannot be that of an InferenceService.
            HopsError: the gateway does not answer.
        """
        self.configs.check_name(model_name)
        try:
            return super().status(model_name, version)
        except HopsError:
            self.at.rest_client().stats()  # a gateway without any version behind it does not know the model's state
            return []

    def why_not_available(self, model_name: str) -> str:
        """Returns the status that KServe reports for a model."""
        return self.configs.why_not_available(model_name)


class InferenceServices:
    """The models of a namespace, as the config of a model server.

    Args:
        services: The services of a connection of kind ``kserve``.
        places: Folders of the models.
        folders: Their versions.
        store: URI of the artifact store, by which the objects of other installations are recognized.

    Raises:
        BadInput: a field is missing or invalid.
    """

    _annotations: ClassVar[Mapping[str, str]] = {_TAGS: "true"}

    def __init__(self, services: Mapping[str, str], places: SharedPlaces, folders: VersionFolders, store: str) -> None:
        url = urlsplit(services.get("serving_kubernetes_url", ""))
        if not url.hostname:
            raise BadInput(
                "a connection whose 'serving_kind' is 'kserve' has no address of Kubernetes; expected a connection of "
                "type kubernetes in its field 'serving_kubernetes_conn_id'"
            )
        if "://" not in places.server_base_path:
            raise BadInput(
                f"connection field 'serving_server_base_path' is {services.get('serving_server_base_path')!r}, but "
                f"'serving_base_path' is the local folder {places.base_path}, which pods do not see; expected its "
                "address for KServe, such as pvc://claim/models"
            )
        files = [_file(services.get(f"serving_kubernetes_{name}")) for name in ("ca", "cert", "private_key")]
        tls = TlsFiles(*files) if url.scheme == "https" else None
        token = services.get("serving_kubernetes_token") or None
        self._client = RestClient(url.hostname, url.port or (443 if tls else 80), tls=tls, token=token)
        self._namespace = services.get("serving_namespace") or "default"
        self._path = f"{url.path}/apis/serving.kserve.io/v1beta1/namespaces/{self._namespace}/inferenceservices"
        self._folders, self._store = folders, store
        self._predictor = json_object(services.get("serving_predictor"), "connection field 'serving_predictor'")
        self.source = f"InferenceServices of namespace {self._namespace!r}"

    def read(self) -> Any:
        """Returns the ``ModelServerConfig`` of the namespace's models."""
        message = config.parse_config("", self.source)
        for item in self._call("GET", query=f"?labelSelector={_OWNER_LABEL}%3D{_OWNER}")["items"]:
            if self._is_ours(item):
                message.model_config_list.MergeFrom(self._config_of(item).model_config_list)
        return message

    def change(self, change: Callable[[Any], Any]) -> Any:
        """Applies ``change`` to the config, changes the objects accordingly, and returns its result.

        Raises:
            ConfigError: the changed config is not valid.
            BadInput: Kubernetes refuses the objects, or one of that name belongs to someone else.
        """
        original = self.read()
        changed = type(original)()
        changed.CopyFrom(original)
        result = change(changed)
        changed.model_config_list.SetInParent()
        config.check_config(changed, self.source)
        old, new = ({m.name: m for m in each.model_config_list.config} for each in (original, changed))
        for name in old.keys() - new.keys():
            self._call("DELETE", name)
        for name, model in new.items():
            if model != old.get(name):
                self._write(name, model)
        return result

    def check_name(self, name: str) -> None:
        """Raises BadInput unless a model's name can be that of an InferenceService."""
        if not _NAME.fullmatch(name) or len(name) > _NAME_CHARACTERS:
            raise BadInput(
                f"model_name is {name!r} ({len(name)} characters), which KServe does not accept; expected at most "
                f"{_NAME_CHARACTERS} lower-case letters, digits and hyphens, with a letter first: rename the model"
            )

    def why_not_available(self, name: str) -> str:
        """Returns the reason that KServe reports for an unavailable model."""
        status = (self._get(name) or {}).get("status", {})
        failure = status.get("modelStatus", {}).get("lastFailureInfo", {}).get("message")
        ready: Mapping[str, Any] = next((c for c in status.get("conditions", []) if c.get("type") == "Ready"), {})
        return f"InferenceService {name!r}: {failure or ready.get('message') or ready.get('status') or 'no status yet'}"

    def shares(self, name: str) -> dict[int, int]:
        """Returns version to percent, without those of 0%; empty if the object does not exist."""
        item = self._get(name)
        if item is None:
            return {}
        *stable, newest = _revisions(item)
        percent = item["spec"]["predictor"].get("canaryTrafficPercent", 100) if stable else 100
        shares = {**dict.fromkeys(stable, 100 - percent), newest: percent}
        return {version: share for version, share in shares.items() if share}

    def set_shares(self, name: str, percents: Mapping[int, int]) -> None:
        """Sets the canary's share; with 100% it becomes the only version."""
        item = self._get(name)
        if item is None or len(revisions := _revisions(item)) == 1:
            return
        (model,) = self._config_of(item).model_config_list.config
        self._set_share(item, model, revisions, percents.get(revisions[-1], 0))

    def _set_share(self, item: Mapping[str, Any], model: Any, revisions: Sequence[int], percent: int) -> None:
        share = None if percent == 100 else percent
        self._patch(model, revisions[-1:] if percent == 100 else revisions, {"canaryTrafficPercent": share})

    def _write(self, name: str, model: Any) -> None:
        """Creates or changes an object; KServe serves two versions, of which the newer one is the canary."""
        item = self._get(name)
        wanted = list(model.model_version_policy.specific.versions)
        present = _revisions(item) if item else []
        new = [version for version in wanted if version not in present]
        if item is None:  # a second version is added once the first one serves
            body = self._body(model, wanted[:1], {**self._predictor, **self._version(model, wanted[0])})
            self._call("POST", body={"apiVersion": "serving.kserve.io/v1beta1", "kind": "InferenceService", **body})
        elif new:
            stable = next((version for version in present if version in wanted), present[0])
            self._patch(model, [stable, new[-1]], {**self._version(model, new[-1]), "canaryTrafficPercent": 0})
        elif wanted == present[:1] != present:
            # Creates a new revision of the stable version. Without the 0%, KServe would replace the old revision at
            # once by the newest one that is ready, which is the canary.
            self._patch(model, wanted, {**self._version(model, wanted[0]), "canaryTrafficPercent": 0})
        elif wanted == present[-1:] != present:
            self._patch(model, wanted, {"canaryTrafficPercent": None})
        else:
            self._patch(model, present, {})

    def _version(self, model: Any, version: int) -> dict[str, Any]:
        known = self._folders.format(model.name, version)
        name = "tensorflow" if known is None else _FORMATS.get(known.name, known.name.lower())
        of_connection = self._predictor.get("model") or {}
        own = {"protocolVersion": "grpc-v1", "storageUri": f"{model.base_path}/{version}"}
        return {"model": {"modelFormat": {"name": name}, **of_connection, **own}}

    def _patch(
        self, model: Any, revisions: Sequence[int], predictor: Mapping[str, object], *, query: str = "", **spec: Any
    ) -> dict[str, Any]:
        """Changes an object, and returns it."""
        body = self._body(model, revisions, predictor)
        return self._call("PATCH", model.name, {**body, "spec": {**body["spec"], **spec}}, query)

    def _body(self, model: Any, revisions: Sequence[int], predictor: Mapping[str, object]) -> dict[str, Any]:
        message = config.parse_config("", self.source)
        message.model_config_list.config.add().CopyFrom(model)
        (written,) = message.model_config_list.config
        written.model_version_policy.specific.versions[:] = sorted(revisions)
        annotations = {
            _CONFIG: config.format_config(message),
            _REVISIONS: ",".join(map(str, revisions)),
            _STORE: self._store,
            **self._annotations,
        }
        metadata = {"name": model.name, "labels": {_OWNER_LABEL: _OWNER}, "annotations": annotations}
        return {"metadata": metadata, "spec": {"predictor": dict(predictor)}}

    def _config_of(self, item: Mapping[str, Any]) -> Any:
        metadata = item["metadata"]
        return config.parse_config(metadata["annotations"][_CONFIG], f"InferenceService {metadata['name']!r}")

    def _is_ours(self, item: Mapping[str, Any]) -> bool:
        return bool(item["metadata"].get("annotations", {}).get(_STORE) == self._store)

    def _get(self, name: str) -> dict[str, Any] | None:
        """Returns an object; None if there is none. Raises BadInput if it belongs to someone else."""
        item = self._call("GET", name)
        if item and not self._is_ours(item):
            metadata = item["metadata"]
            owner = metadata.get("labels", {}).get(_OWNER_LABEL, "someone else")
            raise BadInput(
                f"InferenceService {name!r} of namespace {self._namespace!r} belongs to {owner}, with the store "
                f"{metadata.get('annotations', {}).get(_STORE)!r}; expected {self._store!r}. Give the model another "
                "name or the connection another namespace, or delete the object"
            )
        return item or None

    def _call(self, method: str, name: str = "", body: object = None, query: str = "") -> dict[str, Any]:
        """Calls Kubernetes; returns an empty object for one that does not exist."""
        path = f"{self._path}/{name}".rstrip("/") + query
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        try:
            return self._client.call(method, path, body, {"Content-Type": kind})
        except ModelServerError as error:
            message = f"{self.source} at {self._client.address}: {error}"
            if error.code.name == "PERMISSION_DENIED":
                raise BadInput(
                    f"{message}. Give the account of 'serving_kubernetes_conn_id' a role with the verbs get, list, "
                    "create, patch and delete on inferenceservices of the group serving.kserve.io"
                ) from error
            if "page not found" in str(error):
                raise BadInput(
                    f"{message}. Kubernetes does not know the kind InferenceService, v1beta1: install KServe, or "
                    "correct the connection's 'serving_kubernetes_conn_id'"
                ) from error
            if error.code.name == "NOT_FOUND":
                if method == "POST":  # the namespace
                    raise BadInput(f"{message}. Create it, or correct the connection's 'serving_namespace'") from error
                return {}
            raise error.with_text(message) from error


class CanaryServices(InferenceServices):
    """The models of a namespace in KServe's standard mode, without Knative: ``spec.canary`` since KServe 0.20."""

    _annotations: ClassVar[Mapping[str, str]] = {"serving.kserve.io/deploymentMode": STANDARD}

    def shares(self, name: str) -> dict[int, int]:
        """Returns version to percent, without those of 0%; empty if the object is missing, or its canary is another."""
        item = self._get(name)
        if item is None:
            return {}
        (stable, *canaries), entries = _revisions(item), item["spec"].get("canary") or []
        if len(canaries) != len(entries):
            return {}
        percents = [entry.get("trafficPercent", 0) for entry in entries]
        shares = {stable: 100 - sum(percents), **dict(zip(canaries, percents, strict=True))}
        return {version: share for version, share in shares.items() if share}

    def _set_share(self, item: Mapping[str, Any], model: Any, revisions: Sequence[int], percent: int) -> None:
        if percent == 100:  # the canary's Deployment becomes the only one, without a restart
            self._promote(item, model, revisions[-1])
        else:
            self._set_canary(item, model, revisions, percent)

    def _write(self, name: str, model: Any) -> None:
        """Creates or changes an object; a version that is new to it becomes its canary with 0%."""
        item = self._get(name)
        wanted = list(model.model_version_policy.specific.versions)
        if item is None:
            predictor = {**self._predictor, "name": _SLOTS[0], **self._version(model, wanted[0])}
            body = self._body(model, wanted[:1], predictor)
            self._call("POST", body={"apiVersion": "serving.kserve.io/v1beta1", "kind": "InferenceService", **body})
            return
        stable, *canaries = _revisions(item)
        new = [version for version in wanted if version not in (stable, *canaries)]
        if new:
            self._set_canary(item, model, [stable, new[-1]], 0)
        elif wanted == canaries:
            self._promote(item, model, wanted[0])
        elif wanted == [stable]:
            self._patch(model, wanted, {}, canary=None)
        else:
            self._patch(model, [stable, *canaries], {})

    def _set_canary(self, item: Mapping[str, object], model: object, revisions: Sequence[int], percent: int) -> None:
        """Adds the canary, or changes its share.

        Raises:
            BadInput: KServe does not know the field.
        """
        predictor = {"name": _other_slot(item), **self._version(model, revisions[-1])}
        canary = [{"trafficPercent": percent, "predictor": predictor}]
        # An older KServe drops the field without an error, which a trial shows.
        if not self._patch(model, revisions, {}, query="?dryRun=All", canary=canary).get("spec", {}).get("canary"):
            raise BadInput(
                f"{self.source}: KServe does not know spec.canary, which it has since 0.20; update it, or use Knative "
                "(connection field 'serving_deployment_mode': 'Knative'), or deploy with canary_percent=100"
            )
        self._patch(model, revisions, {}, canary=canary)

    def _promote(self, item: Mapping[str, object], model: object, version: int) -> None:
        predictor = {"name": _other_slot(item), **self._version(model, version)}
        self._patch(model, [version], predictor, canary=None)


def _other_slot(item: Mapping[str, Any]) -> str:
    """Returns the name of the canary's predictor, which is not that of the champion's."""
    return _SLOTS[1] if item["spec"]["predictor"].get("name") == _SLOTS[0] else _SLOTS[0]


class KServeTraffic:
    """The shares of the gateway, and the same of the InferenceService."""

    splits: ClassVar[bool] = True

    def __init__(self, gateway: TrafficShares, services: InferenceServices) -> None:
        self._gateway, self._services = gateway, services

    def read(self, model_name: str) -> dict[int, int]:
        """Returns version to percent; empty if the two differ, so that they are set again."""
        shares = self._gateway.read(model_name)
        return shares if shares == self._services.shares(model_name) else {}

    def set(self, model_name: str, percents: Mapping[int, int] | None) -> None:
        """Sets the shares of the gateway first, which then asks no version that KServe removes."""
        self._gateway.set(model_name, percents)
        if percents is not None:
            self._services.set_shares(model_name, percents)


def _revisions(item: Mapping[str, Any]) -> list[int]:
    """Returns the versions of an object's revisions: the stable one, and the canary, if any."""
    return [int(version) for version in item["metadata"]["annotations"][_REVISIONS].split(",")]


def _file(text: str | None) -> str | None:
    """Writes PEM text to a file of the step."""
    if not text:
        return None
    path = Path(tempfile.mkstemp(suffix=".pem")[1])
    path.write_text(text)
    return str(path)
