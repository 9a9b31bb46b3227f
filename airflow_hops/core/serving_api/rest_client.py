"""A small REST client for TensorFlow Serving's API and the bundled server's additions.

Example::

    client = RestClient("127.0.0.1", 8501)
    client.predict("flights", {"carrier": ["AA"], "distance": [733.0]}).outputs
    client.set_traffic("flights", {1: 90, 2: 10})
"""

from __future__ import annotations

import base64
import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import grpc
import numpy as np

from airflow_hops.core.serving_api import tensors
from airflow_hops.core.serving_api.answers import ModelServerError, ModelVersion, PredictResult, error_of

if TYPE_CHECKING:
    from airflow_hops.core.serving_api.tls_files import TlsFiles

_CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    413: grpc.StatusCode.RESOURCE_EXHAUSTED,
    422: grpc.StatusCode.INVALID_ARGUMENT,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    501: grpc.StatusCode.UNIMPLEMENTED,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}


class RestClient:
    """Client of the REST port of the bundled server or of any ``tensorflow_model_server``.

    Tokens, TLS, and the arguments and errors of methods are those of :class:`~.client.ModelServerClient`.

    Args:
        timeout_s: Time limit of a call, in seconds.
        by_proxy: Whether the environment's proxy is asked, as for external hosts.

    Raises:
        ModelServerError: A file for TLS cannot be read.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        timeout_s: float = 10.0,
        tls: TlsFiles | None = None,
        token: str | None = None,
        prediction_token: str | None = None,
        by_proxy: bool = False,
    ) -> None:
        self.address = f"{'https' if tls else 'http'}://{host}:{port}"
        self.timeout_s = timeout_s
        self._control, self._prediction = (
            {"Authorization": f"Bearer {each}"} if each else {} for each in (token, prediction_token or token)
        )
        try:
            by_tls = [urllib.request.HTTPSHandler(context=tls.context())] if tls else []
        except OSError as error:
            details = f"a file for TLS cannot be used ({tls}): {error}"
            raise error_of(self.address, grpc.StatusCode.INVALID_ARGUMENT, details) from error
        proxy = urllib.request.ProxyHandler(None if by_proxy else {})
        self._opener = urllib.request.build_opener(proxy, _NoRedirects(), *by_tls)

    def predict(
        self,
        model: str,
        inputs: Mapping[str, object],
        *,
        version: int | None = None,
        label: str | None = None,
        signature: str | None = None,
        request_id: str | None = None,
    ) -> PredictResult:
        """Requests a prediction, in columns.

        REST responses do not contain the version, so it is the requested one, or 0. TensorFlow Serving sends a single
        output without its name; it is called ``outputs`` here.
        """
        body: dict[str, Any] = {"inputs": {alias: _as_json(value) for alias, value in inputs.items()}}
        if signature:
            body["signature_name"] = signature
        headers = {**self._prediction, "x-request-id": request_id or ""}
        answer = self.call("POST", f"{_model_path(model, version, label)}:predict", body, headers)
        result = answer["outputs"]
        outputs = result if isinstance(result, Mapping) and "b64" not in result else {"outputs": result}
        return PredictResult({name: tensors.as_array(_decoded(value)) for name, value in outputs.items()}, version or 0)

    def status(self, model: str, version: int | None = None) -> list[ModelVersion]:
        """Returns the states of a model's versions, or of one; an empty list if the server does not know them."""
        try:
            answer = self.call("GET", _model_path(model, version, None), headers=self._prediction)
        except ModelServerError as error:
            if error.code is grpc.StatusCode.NOT_FOUND:
                return []
            raise
        return [
            ModelVersion(int(entry["version"]), entry["state"], entry["status"].get("error_message", ""))
            for entry in answer["model_version_status"]
        ]

    def stats(self) -> dict[str, Any]:
        """Returns the bundled server's counts by model and version since its start."""
        return self.call("GET", "/v1/stats")

    def call(
        self, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """Sends a request and reads the JSON response.

        Raises:
            ModelServerError: The server responded with an error, did not respond, or did not send a JSON object.
        """
        data = None if body is None else json.dumps(body).encode()
        values = {name: value for name, value in {**self._control, **(headers or {})}.items() if value}
        request = urllib.request.Request(f"{self.address}{path}", data, values, method=method)
        try:
            with self._opener.open(request, timeout=self.timeout_s) as response:
                answer = json.load(response)
        except urllib.error.HTTPError as error:
            text = error.read().decode(errors="replace")
            try:
                problem = json.loads(text)
                text = str(problem["error"] if "error" in problem else problem["message"])
            except (ValueError, KeyError, TypeError):
                text = text[:1024]
            code = _CODES.get(error.code, grpc.StatusCode.UNKNOWN)
            if error.code in range(300, 400):
                code = grpc.StatusCode.FAILED_PRECONDITION
                text = f"redirects to {error.headers.get('Location')}, expected the server's own address"
            raise error_of(self.address, code, f"{text} (HTTP {error.code}, {path})") from error
        except (urllib.error.URLError, http.client.HTTPException, OSError, ValueError) as error:
            raise error_of(self.address, grpc.StatusCode.UNAVAILABLE, f"{path}: {error}") from error
        if not isinstance(answer, dict):
            details = f"{path}: {str(answer)[:100]!r}; expected a JSON object"
            raise error_of(self.address, grpc.StatusCode.UNKNOWN, details)
        return answer


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Follows no redirection, which would get the token, and a GET in place of a POST."""

    def redirect_request(self, *arguments: Any) -> None:
        """Returns None, which makes the redirection an error."""


def _model_path(model: str, version: int | None, label: str | None) -> str:
    path = f"/v1/models/{quote(model, safe='')}"
    if version is not None:
        return f"{path}/versions/{version}"
    return f"{path}/labels/{quote(label, safe='')}" if label else path


def _as_json(value: object) -> Any:
    if isinstance(value, bytes):
        return {"b64": base64.b64encode(value).decode()}
    if isinstance(value, list | tuple):
        return [_as_json(item) for item in value]
    if isinstance(value, np.ndarray | np.generic):
        return _as_json(value.tolist())
    return value


def _decoded(value: object) -> Any:
    if isinstance(value, Mapping):
        return base64.b64decode(value["b64"])
    return [_decoded(item) for item in value] if isinstance(value, list) else value
