"""An available version of a model, whether it runs in this process, in another one, or at an upstream server."""

from __future__ import annotations

import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
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
        method: The gRPC method; REST requests are mapped to one.
        message: The serialized request; its ``model_spec`` names the model, but not always this version.
        deadline_s: Deadline of the client, on the clock of ``time.monotonic()``.
    """

    method: Method
    message: bytes
    deadline_s: float = math.inf


class Reply(NamedTuple):
    """The answer to a call.

    Attributes:
        message: The serialized response; its ``model_spec`` names the resolved model, version and signature.
        rows: Rows of the request: the first dimension of its inputs, 1 if all are scalars.
        version: The version that answered, if the servable represents a label.
        captured: The request as it is captured, if it differs from the call's: with the features that were looked up.
    """

    message: bytes
    rows: int
    version: int | None = None
    captured: bytes | None = None


class VersionGone(ServingError):
    """The version no longer exists; another version may answer a request that did not ask for this one."""


@dataclass(frozen=True)
class Signature:
    """A signature with its inputs and outputs.

    Attributes:
        name: Its key in the model.
        method_name: ``tensorflow/serving/predict``, ``…/classify`` or ``…/regress``.
        inputs: Alias to tensor name, sorted by alias.
        input_types: Alias to TensorFlow type, None if the server cannot decode the type.
        input_shapes: Alias to shape, with -1 for a dimension of any size; aliases of any rank are missing. The first
            dimension of inputs in ``batched`` is left open.
        batched: The inputs whose first dimension is the batch, and so has the same size in all of them.
        batch_size: Number of rows that the model was exported for; None for any number.
        outputs: Alias to tensor name, sorted by alias.
        defaults: Alias to the value of an input that the request omits.
    """

    name: str
    method_name: str
    inputs: Mapping[str, str]
    input_types: Mapping[str, tensors.TensorType | None]
    outputs: Mapping[str, str]
    input_shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    batched: frozenset[str] = frozenset()
    batch_size: int | None = None
    defaults: Mapping[str, np.ndarray] = field(default_factory=dict)


Run = Callable[[Signature, Sequence[np.ndarray], tuple[str, ...], float], Sequence[np.ndarray]]
"""Runs a model: signature, an array for each of its inputs, the outputs asked for, and the client's deadline."""


MakeBatcher = Callable[[Run], tuple[Run, int]]
"""Returns a thread-safe function that runs requests of one version together, and the most rows of a request."""
OpenBatching = Callable[[Path], MakeBatcher | None]
"""Returns how requests of the version in a folder are batched, if they are; raises ServingError."""


class Servable(ABC):
    """A version that answers requests until it is closed; thread-safe.

    Args:
        model: Model name.
        version: Version number.
        path: Folder or address that it was loaded from.
        signature_defs: Its signatures, a serialized ``SignatureDefMap``.

    Attributes:
        computes_here: Whether a request only computes in its own thread: it does not wait for other requests, processes
            or servers, and takes as long as other requests of its size.
        in_flight: Number of requests that hold the version open.
        keys: Inputs that are keys of entities, whose features the version looks up.
        max_rows: Maximum number of rows of a request; None if there is none, or it is not known.
        format: Display name of its format; empty if another server has the files.
    """

    format = ""
    computes_here = False
    keys: Collection[str] = ()
    max_rows: int | None = None

    def __init__(self, model: str, version: int, path: str, signature_defs: bytes) -> None:
        self.model = model
        self.version = version
        self.path = path
        self.signature_defs = signature_defs
        self.signatures = read_signatures(signature_defs)
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self.in_flight = 0
        self._closed = False

    @abstractmethod
    def answer(self, call: Call) -> Reply:
        """Answers a request.

        Raises:
            ServingError: The request failed, with the code and message of TensorFlow Serving.
        """

    @abstractmethod
    def _free(self) -> None:
        """Releases memory and processes; called once, when no request is in flight."""

    def metadata(self) -> tuple[int, bytes]:
        """Returns the version and its signatures, a serialized ``SignatureDefMap``.

        Raises:
            ServingError: An upstream server has the signatures, and cannot be asked.
        """
        return self.version, self.signature_defs

    def acquire(self) -> bool:
        """Holds the version open for one request; returns False if it is being unloaded."""
        with self._lock:
            if self._closed:
                return False
            self.in_flight += 1
            return True

    def release(self) -> None:
        """Ends the hold of :meth:`acquire`."""
        with self._lock:
            self.in_flight -= 1
            if self._closed and not self.in_flight:
                self._idle.notify_all()

    def close(self, timeout_s: float = 60.0) -> None:
        """Refuses new requests, waits up to ``timeout_s`` for those in flight, and frees memory and processes."""
        with self._lock:
            self._closed = True
            self._idle.wait_for(lambda: not self.in_flight, timeout_s)
        self._free()

    def signature(self, name: str) -> Signature:
        """Returns the signature with the key; an empty key means the default.

        Raises:
            ServingError: The model does not have the signature.
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
    shapes = {alias: shape for alias, info in inputs.items() if (shape := tensors.shape_of(info)) is not None}
    # An input of a fixed size beside inputs of any size is not a batch, but one value for all rows.
    sizes = {shape[0] for shape in shapes.values() if shape}
    batch = -1 if -1 in sizes else min(sizes) if len(sizes) == 1 else None
    return Signature(
        name=name,
        method_name=definition.method_name,
        inputs={alias: info.name for alias, info in inputs.items()},
        input_types={alias: tensors.BY_NUMBER.get(info.dtype) for alias, info in inputs.items()},
        outputs={alias: definition.outputs[alias].name for alias in sorted(definition.outputs)},
        input_shapes=shapes,
        batched=frozenset(alias for alias, shape in shapes.items() if shape and shape[0] == batch),
        batch_size=None if batch == -1 else batch,
        defaults={alias: tensors.from_proto(definition.defaults[alias]) for alias in definition.defaults},
    )
