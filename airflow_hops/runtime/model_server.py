"""The model server as deploy and rollout steer it: its base path, its config and traffic files, its status and counts.

Everything here can be done twice with the same outcome, so that a task which was killed at any point can be retried.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import shutil
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_hops.artifacts import BadInput, HopsError
from airflow_hops.serving_api import config

_MARKER = Path("assets.extra") / "hops.json"
"""Names the model that a version folder holds; ``assets.extra`` is where a SavedModel keeps what it does not load."""

_POLL_S = 0.05
_STALE_ERROR_S = 5.0


class VersionRefused(BadInput):
    """The server tried to load a version and could not; the message carries the server's own."""


@dataclass(frozen=True)
class ModelServer:
    """A running server.

    Attributes:
        host: Its host.
        grpc_port: Its gRPC port.
        rest_port: Its REST port, or None where it has none.
        base_path: Folder of the models; versions lie in ``<base_path>/<model>/<version>``.
        config_file: Its ``--model_config_file``.
        traffic_file: Its ``--traffic_config_file``.
        capture_path: Its ``--capture_base_path``, or None.
    """

    host: str
    grpc_port: int
    rest_port: int | None
    base_path: Path
    config_file: Path
    traffic_file: Path
    capture_path: Path | None

    @classmethod
    def of(cls, services: Mapping[str, str]) -> ModelServer:
        """The server that the connection names.

        Raises:
            BadInput: a field is missing, or is not what it should be.
        """
        capture = services.get("serving_capture_path")
        return cls(
            host=services.get("serving_host") or "127.0.0.1",
            grpc_port=_port(services, "serving_port") or 8500,
            rest_port=_port(services, "serving_rest_port"),
            base_path=_path(services, "serving_base_path"),
            config_file=_path(services, "serving_config_file"),
            traffic_file=_path(services, "serving_traffic_file"),
            capture_path=_path(services, "serving_capture_path") if capture else None,
        )

    @property
    def address(self) -> str:
        """``host:port`` of the gRPC port."""
        return f"{self.host}:{self.grpc_port}"

    @contextlib.contextmanager
    def exclusive(self, model_name: str, timeout_s: float = 300.0) -> Iterator[None]:
        """Holds a model for one task: two that deploy or decide at once would undo each other's work.

        Raises:
            HopsError: another task has held it for ``timeout_s`` seconds.
        """
        folder = self.base_path / model_name
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / ".lock"
        with path.open("w") as lock:
            deadline_s = time.monotonic() + timeout_s
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline_s:
                        raise HopsError(
                            f"model {model_name!r}: another task has held {path} for {timeout_s:g} s"
                        ) from None
                    time.sleep(_POLL_S)
            yield

    def check_reachable(self, model_name: str) -> None:
        """Asks for the model's status, whatever it is.

        Raises:
            HopsError: the server does not answer.
        """
        self.status(model_name)

    def status(self, model_name: str, version: int | None = None) -> list[Any]:
        """States of a model's versions, or of one; an empty list where the server knows none.

        Raises:
            HopsError: the server does not answer.
        """
        import grpc

        from airflow_hops.serving_api.client import ModelServerClient, ModelServerError

        try:
            with ModelServerClient(self.address) as client:
                return list(client.status(model_name, version))
        except ModelServerError as error:
            if error.code is grpc.StatusCode.NOT_FOUND:
                return []
            raise HopsError(
                f"model server {self.address} does not answer ({error}); is it running? It is named by the "
                "connection's host and port"
            ) from error

    def version_path(self, model_name: str, version: int) -> Path:
        """The folder of a version."""
        return self.base_path / model_name / str(version)

    def publish(self, saved_model: Path, model_name: str, version: int, fingerprint: str) -> bool:
        """Copies a SavedModel to its version's folder, which appears whole or not at all.

        Args:
            saved_model: The SavedModel.
            model_name: Model name.
            version: Version number.
            fingerprint: The model artifact's, left in the folder.

        Returns:
            False where the folder was there already, with this very model.

        Raises:
            BadInput: there is no SavedModel, or the folder holds another model.
        """
        check_saved_model(saved_model)
        target = self.version_path(model_name, version)
        if target.exists():
            found = _published_fingerprint(target)
            if found != fingerprint:
                raise BadInput(
                    f"{target}: holds another model (fingerprint {str(found)[:12]}, expected {fingerprint[:12]}): the "
                    "registry and this folder do not belong together; clear the folder, or name another "
                    "serving_base_path"
                )
            return False
        target.parent.mkdir(parents=True, exist_ok=True)
        for rubbish in target.parent.glob(".staging-*"):
            shutil.rmtree(rubbish, ignore_errors=True)
        staging = target.parent / f".staging-{version}-{uuid.uuid4().hex[:8]}"
        try:
            shutil.copytree(saved_model, staging)
            (staging / _MARKER.parent).mkdir(exist_ok=True)
            (staging / _MARKER).write_text(json.dumps({"fingerprint": fingerprint, "version": version}))
            staging.rename(target)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
        return True

    def unpublish(self, model_name: str, version: int) -> None:
        """Removes a version's folder; it disappears at once."""
        target = self.version_path(model_name, version)
        staging = target.parent / f".staging-removed-{version}-{uuid.uuid4().hex[:8]}"
        with contextlib.suppress(FileNotFoundError):
            target.rename(staging)
        shutil.rmtree(staging, ignore_errors=True)

    def serve(self, model_name: str, versions: list[int], labels: Mapping[str, int] | None = None) -> Any:
        """Writes into the config file which versions are to be served; what was there before is returned.

        Args:
            model_name: Model name.
            versions: Version numbers.
            labels: Label to version; None keeps those there are, as far as their versions stay.
        """
        if labels is None:
            labels = {label: v for label, v in self.labels(model_name).items() if v in versions}
        return config.set_model(self.config_file, model_name, self.base_path / model_name, versions, labels)

    def restore(self, model_name: str, previous: Any) -> None:
        """Undoes :meth:`serve` with what it returned."""
        if previous is None:
            config.remove_model(self.config_file, model_name)
        else:
            config.restore_model(self.config_file, previous)

    def configured(self, model_name: str) -> list[int]:
        """The versions that the config file names for a model."""
        model = self._configured_model(model_name)
        return sorted(model.model_version_policy.specific.versions) if model is not None else []

    def labels(self, model_name: str) -> dict[str, int]:
        """The labels that the config file gives."""
        model = self._configured_model(model_name)
        return dict(model.version_labels) if model is not None else {}

    def set_traffic(self, model_name: str, percents: Mapping[int, int]) -> None:
        """Writes the shares of the versions; a share of nothing is left out."""
        shares = {version: percent for version, percent in percents.items() if percent}
        config.set_traffic(self.traffic_file, model_name, shares)

    def traffic(self, model_name: str) -> dict[int, int]:
        """The shares that the traffic file gives."""
        return dict(config.read_traffic(self.traffic_file).get(model_name, {}))

    def last_error(self, model_name: str, version: int) -> str:
        """What the server says is wrong with a version now."""
        return next((state.error for state in self.status(model_name, version)), "")

    def wait_until_available(
        self,
        model_name: str,
        version: int,
        timeout_s: float,
        *,
        error_before: str = "",
        on_state: Callable[[str], None] = lambda state: None,
    ) -> None:
        """Waits until the server answers requests with a version.

        Args:
            model_name: Model name.
            version: Version number.
            timeout_s: How long to wait.
            error_before: What the server said was wrong before the config changed: it may be an earlier try's.
            on_state: Told each new state.

        Raises:
            VersionRefused: the server could not load it.
            HopsError: it is not available in time, or the server has gone.
        """
        began_s = time.monotonic()
        said = ""
        while True:
            problem = "the server has not seen it"
            try:
                for state in self.status(model_name, version):
                    if state.state == "AVAILABLE":
                        return
                    problem = f"{state.state}{': ' + state.error if state.error else ''}"
                    stale = state.error == error_before and time.monotonic() - began_s < _STALE_ERROR_S
                    if state.error and not stale:
                        raise VersionRefused(
                            f"model server {self.address} does not load model {model_name!r} version {version} "
                            f"({self.version_path(model_name, version)}): {state.error}"
                        )
            except VersionRefused:
                raise
            except HopsError as error:
                problem = str(error)
            if problem != said:
                on_state(problem)
                said = problem
            if time.monotonic() - began_s > timeout_s:
                raise HopsError(
                    f"model server {self.address}: model {model_name!r} version {version} is not available after "
                    f"{timeout_s:g} s ({problem}); does the server read {self.config_file} "
                    "(--model_config_file_poll_wait_seconds)?"
                )
            time.sleep(_POLL_S)

    def wait_until_gone(self, model_name: str, version: int, timeout_s: float) -> bool:
        """Waits until the server has unloaded a version; whether it had in time."""
        deadline_s = time.monotonic() + timeout_s
        while time.monotonic() < deadline_s:
            with contextlib.suppress(HopsError):
                if all(state.state == "END" and not state.error for state in self.status(model_name, version)):
                    return True
            time.sleep(_POLL_S)
        return False

    def counts(self, model_name: str) -> dict[int, dict[str, Any]]:
        """What the server has counted of each version since it started (``GET /v1/stats``).

        Raises:
            BadInput: the connection names no REST port.
            HopsError: the server does not answer.
        """
        answer = self._rest("GET", "/v1/stats")
        versions = answer.get("models", {}).get(model_name, {}).get("versions", {})
        return {int(version): {**figures, "server_since": answer.get("since")} for version, figures in versions.items()}

    def flush_capture(self) -> None:
        """Has the server write what it captured so far."""
        self._rest("POST", "/v1/capture:flush")

    def _rest(self, method: str, path: str) -> dict[str, Any]:
        if self.rest_port is None:
            raise BadInput(
                "the server's counts are read through its REST port, which the connection does not name; set the "
                "field 'serving_rest_port'"
            )
        url = f"http://{self.host}:{self.rest_port}{path}"
        try:
            # No proxy: the environment's is for the world outside.
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            with opener.open(urllib.request.Request(url, method=method), timeout=30) as response:
                answer: dict[str, Any] = json.load(response)
                return answer
        except (urllib.error.URLError, OSError, ValueError) as error:
            raise HopsError(f"model server {url} does not answer as expected ({error}); is it running?") from error

    def _configured_model(self, model_name: str) -> Any:
        if not self.config_file.exists():
            return None
        models = config.read_config(self.config_file).model_config_list.config
        return next((model for model in models if model.name == model_name), None)


def check_saved_model(folder: Path) -> None:
    """Checks that a folder holds a SavedModel's first file; whether it loads is for the server to say.

    Raises:
        BadInput: it does not.
    """
    if not any((folder / name).is_file() for name in ("saved_model.pb", "saved_model.pbtxt")):
        raise BadInput(f"{folder}: not a SavedModel (neither saved_model.pb nor saved_model.pbtxt is in it)")


def _published_fingerprint(folder: Path) -> str | None:
    try:
        value = json.loads((folder / _MARKER).read_text())
        return str(value["fingerprint"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def _port(services: Mapping[str, str], name: str) -> int | None:
    text = services.get(name)
    if not text:
        return None
    if not str(text).isdigit() or not 0 < int(text) < 65536:
        raise BadInput(f"connection field {name!r} is {text!r}; expected a port from 1 to 65535")
    return int(text)


def _path(services: Mapping[str, str], name: str) -> Path:
    text = services.get(name)
    if not text:
        raise BadInput(f"the connection's field {name!r} is empty; expected a path that the model server reads too")
    path = Path(text.removeprefix("file://"))
    if "://" in str(text).removeprefix("file://") or not path.is_absolute():
        raise BadInput(f"connection field {name!r} is {text!r}; expected an absolute path of a local file system")
    return path
