"""Access control: one table of the rights of RPCs and REST routes, and the files of tokens that grant them."""

from __future__ import annotations

import enum
import hmac
import ipaddress
import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import grpc

from airflow_hops.core.serving_api.config import ConfigError
from airflow_hops.serving.errors import ServingError


class Right(enum.Enum):
    """A right that a token grants."""

    OPEN = "ask for health"
    PREDICT = "predict"
    FEEDBACK = "give feedback"
    CONTROL = "read and change everything else"


RIGHTS: Mapping[str, Right] = {
    "GET /healthz": Right.OPEN,
    "GET /readyz": Right.OPEN,
    "/grpc.health.v1.Health/Check": Right.OPEN,
    # A client of TensorFlow Serving needs signatures and states to predict.
    "POST /v1/models/MODEL[/versions/N|/labels/L]:predict": Right.PREDICT,
    "POST /v1/models/MODEL[/versions/N|/labels/L]:classify": Right.PREDICT,
    "POST /v1/models/MODEL[/versions/N|/labels/L]:regress": Right.PREDICT,
    "GET /v1/models/MODEL[/versions/N|/labels/L]/metadata": Right.PREDICT,
    "GET /v1/models/MODEL[/versions/N|/labels/L]": Right.PREDICT,
    "GET /v1/models[/versions/N|/labels/L]/metadata": Right.PREDICT,
    "GET /v1/models[/versions/N|/labels/L]": Right.PREDICT,
    "/tensorflow.serving.PredictionService/Predict": Right.PREDICT,
    "/tensorflow.serving.PredictionService/Classify": Right.PREDICT,
    "/tensorflow.serving.PredictionService/Regress": Right.PREDICT,
    "/tensorflow.serving.PredictionService/MultiInference": Right.PREDICT,
    "/tensorflow.serving.PredictionService/GetModelMetadata": Right.PREDICT,
    "/tensorflow.serving.ModelService/GetModelStatus": Right.PREDICT,
    # A client could label other clients' requests, as their ids can be guessed.
    "POST /v1/feedback": Right.FEEDBACK,
    "/tensorflow.serving.ModelService/HandleReloadConfigRequest": Right.CONTROL,
    "/hops.serving.TrafficService/GetTraffic": Right.CONTROL,
    "/hops.serving.TrafficService/SetTraffic": Right.CONTROL,
    "GET /v1/models/MODEL:traffic": Right.CONTROL,
    "POST /v1/models/MODEL:traffic": Right.CONTROL,
    "GET /v1/config": Right.CONTROL,
    "GET /v1/stats": Right.CONTROL,
    "GET /v1/capture": Right.CONTROL,
    "POST /v1/capture:flush": Right.CONTROL,
}
"""The right that each RPC (``/package.Service/Method``) and REST route (``METHOD /path``) requires."""


def right_of(operation: str) -> Right:
    """Returns the right that an RPC or route requires.

    Raises:
        LookupError: The table lacks the operation; every new operation must be added with the right that it requires.
    """
    if operation not in RIGHTS:
        raise LookupError(f"{operation} is not in airflow_hops.serving.access.RIGHTS; expected the right it needs")
    return RIGHTS[operation]


log = logging.getLogger(__name__)

_LOOK_S = 1.0


class TokenFile:
    """Tokens of a file, one per line; empty lines and lines that begin with ``#`` are ignored.

    While tokens are compared, the file is checked for changes once a second, so a new token can be added before the old
    one is removed. If the file becomes unreadable, the previous tokens stay valid and a warning is logged.

    Args:
        flag: Flag that names the file.
        path: Path of the file.

    Raises:
        ConfigError: The file cannot be read, or does not contain a token.
    """

    def __init__(self, flag: str, path: str) -> None:
        self.flag = flag
        self._path = Path(path)
        self._state: tuple[int, int, int] | None = None
        self._look_at_s = 0.0
        self._tokens: tuple[bytes, ...] = ()
        self._said = ""
        try:
            self._read()
        except (OSError, ConfigError) as error:
            raise ConfigError(self._fault(error)) from error

    @property
    def first(self) -> str:
        """The first token."""
        return self._current()[0].decode()

    def holds(self, token: bytes) -> bool:
        """Returns whether the file contains a token; the comparison does not leak tokens through timing."""
        return any(hmac.compare_digest(token, known) for known in self._current())

    def _current(self) -> tuple[bytes, ...]:
        now_s = time.monotonic()
        if now_s >= self._look_at_s:
            self._look_at_s = now_s + _LOOK_S
            try:
                self._read()
                self._said = ""
            except (OSError, ConfigError) as error:
                fault = self._fault(error)
                if fault != self._said:
                    log.error("%s; the tokens that were read before stay valid", fault)
                self._said = fault
        return self._tokens

    def _read(self) -> None:
        result = self._path.stat()
        state = (result.st_mtime_ns, result.st_size, result.st_ino)
        if state == self._state:
            return
        lines = [line.strip() for line in self._path.read_bytes().splitlines()]
        tokens = [line for line in lines if line and not line.startswith(b"#")]
        if not tokens or any(len(token.split()) > 1 for token in tokens):
            raise ConfigError("expected a token on each line")
        if result.st_nlink and result.st_mode & 0o004:  # a file without a name (in memory) cannot be opened by others
            log.warning("%s=%s: every user of this machine may read it; chmod o-r prevents that", self.flag, self._path)
        if self._state is not None:
            log.info("%s=%s: read again", self.flag, self._path)
        self._tokens, self._state = tuple(tokens), state

    def _fault(self, error: Exception) -> str:
        what = f"cannot be read: {error.strerror}" if isinstance(error, OSError) else str(error)
        return f"{self.flag}={self._path}: {what}"


class Access:
    """Grants access to requests with a token for the right that they require.

    Args:
        control: Tokens for everything. None requires no tokens at all.
        prediction: Tokens for predictions only; None lets everyone predict.
        feedback: Tokens for feedback only.
    """

    def __init__(
        self, control: TokenFile | None, prediction: TokenFile | None = None, feedback: TokenFile | None = None
    ) -> None:
        self._files = [file for file in (control, prediction, feedback) if file is not None]
        self._granting: dict[Right, list[TokenFile]] = {}
        if control is not None:
            self._granting[Right.CONTROL] = [control]
            self._granting[Right.FEEDBACK] = [control, *([feedback] if feedback else [])]
            if prediction is not None:
                self._granting[Right.PREDICT] = [control, prediction]

    def asks_for(self, right: Right) -> bool:
        """Returns whether a right requires a token."""
        return right in self._granting

    def check(self, right: Right, authorization: str | bytes | None) -> None:
        """Checks the token of a request.

        Args:
            right: Right that the request requires.
            authorization: Its ``Authorization`` header or metadata.

        Raises:
            ServingError: The token is missing or unknown (UNAUTHENTICATED), or does not grant this right
                (PERMISSION_DENIED).
        """
        granting = self._granting.get(right)
        if granting is None:
            return
        values = _token(authorization)
        if any(file.holds(values) for file in granting):
            return
        flags = " or ".join(file.flag for file in reversed(granting))
        if any(file.holds(values) for file in self._files):
            raise ServingError(
                grpc.StatusCode.PERMISSION_DENIED, f"This token may not {right.value}; expected a token of {flags}"
            )
        raise ServingError(
            grpc.StatusCode.UNAUTHENTICATED,
            f"To {right.value} takes the header 'Authorization: Bearer TOKEN' with a token of {flags}",
        )


def authorization_of(metadata: Iterable[tuple[str, str | bytes]]) -> str | bytes | None:
    """Returns the ``authorization`` entry of a gRPC call's metadata."""
    return next((value for key, value in metadata if key == "authorization"), None)


def warnings_of(host: str, access: Access, plain_ports: Iterable[str]) -> Iterator[str]:
    """Yields warnings for the log at the start, about access from other machines.

    Args:
        host: Address that the server listens on.
        access: Access control of the server.
        plain_ports: Ports without TLS, each with the flag that enables it.
    """
    if _is_loopback(host):
        return
    needs = {
        Right.PREDICT: "predict (--prediction_token_file)",
        Right.CONTROL: "change config and traffic, read logs, config and counts, give feedback, and have captured "
        "requests written (--control_token_file)",
    }
    may = [text for right, text in needs.items() if not access.asks_for(right)]
    if may:
        yield f"--host={host}: clients without a token may {'; and '.join(may)}"
    if len(may) < len(needs):
        for port in plain_ports:
            yield f"--host={host}: tokens can be read on their way to the {port}"


def _token(authorization: str | bytes | None) -> bytes:
    values = authorization.encode("utf-8", "replace") if isinstance(authorization, str) else authorization or b""
    scheme, _, token = values.partition(b" ")
    return token.strip() if scheme.lower() == b"bearer" else b""


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
