"""One loaded version of a model: a TensorFlow session and what its signatures take and give."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf.config_pb2 import CallableOptions

from airflow_hops.serving import tensors
from airflow_hops.serving.errors import ServingError, code_of, invalid_argument

tf.get_logger().setLevel("ERROR")

DEFAULT_SIGNATURE = "serving_default"
# Beyond this many different output filters the callables are not kept: a filter is the client's choice.
_MAX_CALLABLES = 64


@dataclass(frozen=True)
class LoadOptions:
    """How SavedModels are loaded.

    Attributes:
        tags: Tags of the meta graph.
        intra_op_threads: Threads of one TensorFlow operation; 0 lets TensorFlow choose.
        inter_op_threads: Threads over the operations of one request; 0 runs them in the request's own thread, which
            spares a small model the hand-over (6 microseconds a call instead of 50) and loses nothing under load.
    """

    tags: tuple[str, ...] = ("serve",)
    intra_op_threads: int = 0
    inter_op_threads: int = 0


@dataclass(frozen=True)
class Signature:
    """A signature with its aliases sorted, ready to be called.

    Attributes:
        name: Its key in the SavedModel.
        inputs: Alias to tensor name.
        input_types: Alias to TensorFlow type, None where the server cannot decode the type.
        outputs: Alias to tensor name.
        defaults: Alias to the value used when a request leaves the input out.
    """

    name: str
    inputs: dict[str, str]
    input_types: dict[str, tensors.TensorType | None]
    outputs: dict[str, str]
    defaults: dict[str, np.ndarray]
    callables: dict[tuple[str, ...], Any] = field(default_factory=dict)


class Servable:
    """A version that answers requests until it is closed.

    Loaded with the TensorFlow 1 loader, which opens every SavedModel that TensorFlow 2 and 1 write, and called through
    ``_make_callable_from_options``, which costs 20 microseconds where a ConcreteFunction costs 130.

    Args:
        model: Model name.
        version: Version number.
        path: Folder of the SavedModel.
        options: How to load it.

    Raises:
        ServingError: The SavedModel does not load; the message is TensorFlow's.
    """

    def __init__(self, model: str, version: int, path: str | os.PathLike[str], options: LoadOptions) -> None:
        self.model = model
        self.version = version
        self.path = Path(path)
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._in_flight = 0
        self._closed = False
        started = time.monotonic()
        self._in_own_thread = not options.inter_op_threads
        self._graph = tf.Graph()
        session_config = tf.compat.v1.ConfigProto(
            intra_op_parallelism_threads=options.intra_op_threads,
            inter_op_parallelism_threads=options.inter_op_threads,
        )
        self._session = tf.compat.v1.Session(graph=self._graph, config=session_config)
        try:
            with self._graph.as_default():
                self._meta_graph = tf.compat.v1.saved_model.loader.load(
                    self._session, list(options.tags), os.fspath(path)
                )
            self.signatures = {
                name: _read_signature(name, definition)
                for name, definition in self._meta_graph.signature_def.items()
                if not name.startswith("__saved_model")
            }
        except Exception as error:
            self._session.close()
            raise _load_error(error, self.path) from error
        self.load_s = time.monotonic() - started

    @property
    def signature_defs(self) -> Mapping[str, Any]:
        """The SavedModel's own ``SignatureDef`` messages, by key."""
        return {name: self._meta_graph.signature_def[name] for name in self.signatures}

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
        """Takes no new request, waits for those in flight, and gives the session back.

        Args:
            timeout_s: How long to wait for requests in flight.
        """
        with self._lock:
            self._closed = True
            self._idle.wait_for(lambda: not self._in_flight, timeout_s)
        for signature in self.signatures.values():
            signature.callables.clear()
        self._session.close()

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

    def predict(
        self, signature: Signature, inputs: Mapping[str, np.ndarray], output_filter: Sequence[str] = ()
    ) -> dict[str, np.ndarray]:
        """Runs the model once.

        Args:
            signature: One of this servable's signatures.
            inputs: Alias to array.
            output_filter: Aliases of the outputs wanted; empty for all.

        Returns:
            Alias to array.

        Raises:
            ServingError: The inputs do not fit the signature, or the graph refuses them.
        """
        feeds = _feeds(signature, inputs)
        aliases = _checked_filter(signature, output_filter) if output_filter else tuple(signature.outputs)
        run = signature.callables.get(aliases) or self._callable(signature, aliases)
        try:
            values = run(*feeds)
        except tf.errors.OpError as error:
            raise ServingError(code_of(error.error_code), error.message) from error
        except (TypeError, ValueError) as error:
            raise invalid_argument(str(error)) from error
        return dict(zip(aliases, values, strict=True))

    def _callable(self, signature: Signature, aliases: tuple[str, ...]) -> Any:
        options = CallableOptions(
            feed=list(signature.inputs.values()), fetch=[signature.outputs[alias] for alias in aliases]
        )
        if self._in_own_thread:
            options.run_options.inter_op_thread_pool = -1
        made = self._session._make_callable_from_options(options)
        if len(signature.callables) < _MAX_CALLABLES:
            signature.callables[aliases] = made
        return made


def _read_signature(name: str, definition: Any) -> Signature:
    inputs = {alias: definition.inputs[alias] for alias in sorted(definition.inputs)}
    return Signature(
        name=name,
        inputs={alias: info.name for alias, info in inputs.items()},
        input_types={alias: tensors.BY_NUMBER.get(info.dtype) for alias, info in inputs.items()},
        outputs={alias: definition.outputs[alias].name for alias in sorted(definition.outputs)},
        defaults={alias: tensors.from_proto(definition.defaults[alias]) for alias in definition.defaults},
    )


def _names(names: Any) -> str:
    return ",".join(sorted(names))


def _feeds(signature: Signature, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Orders the inputs as the callable takes them, or raises TensorFlow Serving's own message."""
    expected = signature.inputs
    if len(inputs) > len(expected) or (len(inputs) < len(expected) and not signature.defaults):
        raise invalid_argument(
            f"input size does not match signature: {len(inputs)}!={len(expected)} "
            f"len({{{_names(inputs)}}}) != len({{{_names(expected)}}}). "
            f"Sent extra: {{{_names(inputs.keys() - expected.keys())}}}. "
            f"Missing but required: {{{_names(expected.keys() - inputs.keys())}}}."
        )
    feeds: list[np.ndarray] = []
    used = 0
    for alias, tensor_name in expected.items():
        value = inputs.get(alias)
        if value is None:
            value = signature.defaults.get(alias)
            if value is None:
                raise invalid_argument(
                    f"Signature input alias: {alias}(feed name: {tensor_name}) not found in request and no default "
                    f"value provided. Inputs expected to be in the request {{{_names(inputs)}}}, or default input "
                    f"alias set: {_names(signature.defaults)}"
                )
        else:
            used += 1
        expected_type = signature.input_types[alias]
        if expected_type is not None and value.dtype != expected_type.numpy:
            # NumPy would convert silently where TensorFlow refuses.
            raise invalid_argument(
                f"Expects arg[{len(feeds)}] to be {expected_type.name} but {tensors.type_of(value).name} is provided "
                f"(input alias: {alias})"
            )
        feeds.append(value)
    if used != len(inputs):
        raise invalid_argument(
            f"Inputs contains invalid name. Used request inputs: {_names(inputs.keys() & expected.keys())}, "
            f"request input: {_names(inputs)}"
        )
    return feeds


def _checked_filter(signature: Signature, output_filter: Sequence[str]) -> tuple[str, ...]:
    seen: set[str] = set()
    for alias in output_filter:
        if alias not in signature.outputs:
            raise invalid_argument(
                f"output tensor alias not found in signature: {alias} Outputs expected to be in the set "
                f"{{{_names(signature.outputs)}}}."
            )
        if alias in seen:
            raise invalid_argument(f"duplicate output tensor alias: {alias}")
        seen.add(alias)
    return tuple(output_filter)


def _load_error(error: Exception, path: Path) -> ServingError:
    if isinstance(error, tf.errors.OpError):
        return ServingError(code_of(error.error_code), error.message)
    if isinstance(error, (OSError, RuntimeError)):
        return ServingError(grpc.StatusCode.NOT_FOUND, f"Could not load SavedModel at {path}: {error}")
    return ServingError(
        grpc.StatusCode.INTERNAL, f"Could not load SavedModel at {path}: {type(error).__name__}: {error}"
    )
