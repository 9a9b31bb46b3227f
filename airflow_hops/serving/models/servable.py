"""One available version of a model, whatever runs it: a session here, another server process, a server upstream."""

from __future__ import annotations

import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import grpc
import numpy as np

from airflow_hops.core.serving_api import tensors
from airflow_hops.core.serving_api.protocol import Method, SignatureDefMap
from airflow_hops.serving.errors import ServingError

DEFAULT_SIGNATURE = "serving_default"


class Call(NamedTuple):
    """One request to one version.

    Attributes:
        method: The gRPC method; requests that came through REST have one, too.
        message: The request, serialized; its ``model_spec`` names the model, and need not name this version.
        deadline_s: When the client gives up, as of ``time.monotonic()``.
    """

    method: Method
    message: bytes
    deadline_s: float = math.inf


class Reply(NamedTuple):
    """The answer to a call.

    Attributes:
        message: The response, serialized; its ``model_spec`` names model, version and signature as resolved.
        rows: Rows of the request: the first dimension of its inputs, 1 if they have none.
        version: The version that answered, where the servable does not stand for one version.
    """

    message: bytes
    rows: int
    version: int | None = None


class VersionGone(ServingError):
    """The version is not there any more: another may answer a request that asked for none."""


@dataclass(frozen=True)
class Signature:
    """A signature: its inputs and outputs.

    Attributes:
        name: Its key in the model.
        method_name: ``tensorflow/serving/predict``, ``…/classify`` or ``…/regress``.
        inputs: Alias to tensor name, aliases sorted.
        input_types: Alias to TensorFlow type, None if the server cannot decode the type.
        outputs: Alias to tensor name, aliases sorted.
        defaults: Alias to the value used when a request leaves the input out.
    """

    name: str
    method_name: str
    inputs: Mapping[str, str]
    input_types: Mapping[str, tensors.TensorType | None]
    outputs: Mapping[str, str]
    defaults: Mapping[str, np.ndarray] = field(default_factory=dict)


class Servable(ABC):
    """A version that answers requests until it is closed; safe to call from every request thread.

    Args:
        model: Model name.
        version: Version number.
        path: Where it was loaded from: its folder, or an address.
        signature_defs: Its signatures, a serialized ``SignatureDefMap``.

    Attributes:
        computes_here: Whether a request is nothing but computing in the thread that asks: it waits for no other
            request, process or server, and takes as long as others of its size.
    """

    computes_here = False

    def __init__(self, model: str, version: int, path: str, signature_defs: bytes) -> None:
        self.model = model
        self.version = version
        self.path = path
        self.signature_defs = signature_defs
        self.signatures = read_signatures(signature_defs)
        self.load_s = 0.0
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._in_flight = 0
        self._closed = False

    @abstractmethod
    def answer(self, call: Call) -> Reply:
        """Answers a request.

        Raises:
            ServingError: With the code and message that TensorFlow Serving gives.
        """

    @abstractmethod
    def _free(self) -> None:
        """Gives back what it holds; called once, when nothing is in flight."""

    def metadata(self) -> tuple[int, bytes]:
        """Returns the version and its signatures, a serialized ``SignatureDefMap``.

        Raises:
            ServingError: They are elsewhere, and cannot be had.
        """
        return self.version, self.signature_defs

    @property
    def in_flight(self) -> int:
        """Requests that it is held open for."""
        return self._in_flight

    def acquire(self) -> bool:
        """Holds the servable open for one request; False when it is being unloaded."""
        with self._lock:
            if self._closed:
                return False
            self._in_flight += 1
            return True

    def release(self) -> None:
        """Ends what ``acquire`` began."""
        with self._lock:
            self._in_flight -= 1
            if self._closed and not self._in_flight:
                self._idle.notify_all()

    def close(self, timeout_s: float = 60.0) -> None:
        """Takes no new request, waits for those in flight, and gives memory and processes back.

        Args:
            timeout_s: How long to wait for requests in flight.
        """
        with self._lock:
            self._closed = True
            self._idle.wait_for(lambda: not self._in_flight, timeout_s)
        self._free()

    def signature(self, name: str) -> Signature:
        """Returns the signature of a request.

        Args:
            name: Its key; empty for the default.

        Raises:
            ServingError: There is none of that name.
        """
        key = name or DEFAULT_SIGNATURE
        try:
            return self.signatures[key]
        except KeyError:
            raise ServingError(
                grpc.StatusCode.FAILED_PRECONDITION, f'Serving signature key "{key}" not found.'
            ) from None


def read_signatures(signature_defs: bytes) -> dict[str, Signature]:
    """Reads a serialized ``SignatureDefMap``."""
    definitions = SignatureDefMap.FromString(signature_defs).signature_def
    return {name: _signature(name, definitions[name]) for name in definitions}


def _signature(name: str, definition: Any) -> Signature:
    inputs = {alias: definition.inputs[alias] for alias in sorted(definition.inputs)}
    return Signature(
        name=name,
        method_name=definition.method_name,
        inputs={alias: info.name for alias, info in inputs.items()},
        input_types={alias: tensors.BY_NUMBER.get(info.dtype) for alias, info in inputs.items()},
        outputs={alias: definition.outputs[alias].name for alias in sorted(definition.outputs)},
        defaults={alias: tensors.from_proto(definition.defaults[alias]) for alias in definition.defaults},
    )
