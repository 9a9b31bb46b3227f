"""Versions whose features are looked up in a feature store: requests hold the keys of the entities instead."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np

from airflow_hops.core.serving_api import tensors
from airflow_hops.core.serving_api.protocol import Method, PredictRequest, SignatureDefMap
from airflow_hops.extensions.feature_store.core.stored_features import (
    OnlineFeatures,
    StoredFeature,
    value_time_input,
)
from airflow_hops.extensions.feature_store.serving.feature_server import (
    KEY_TENSORS,
    FeatureServer,
    FeatureServerError,
    LookupLimit,
    StoredValue,
)
from airflow_hops.serving.errors import ServingError, invalid_argument
from airflow_hops.serving.models.local import count_rows, decode_input
from airflow_hops.serving.models.servable import Call, Reply, Servable, Signature
from airflow_hops.serving.models.signature_defs import fill_info

# A request: check keys, ask the feature server, check the values, call the inner version. Captured are the keys, the
# features and the times of the values: with them, the skew monitor can compare what was served with the source. A value
# of another type, or a missing one without a default, fails the request; nothing is guessed.

_INTEGERS = (int, bool)
_VALUE_TYPES = {"O": (bytes, str), "b": (bool,), "i": _INTEGERS, "u": _INTEGERS, "f": (float, *_INTEGERS)}
"""Types of stored values that an input takes, by the kind of its NumPy type."""
_LARGEST_EXACT = 2**53
"""Integers beyond it are refused in training sets where they would become floats."""


@dataclass(frozen=True)
class _Column:
    """An input of the model that is looked up: its origin and type, and the width of vectors, -1 for any."""

    name: str
    origin: StoredFeature
    dtype: tensors.TensorType
    width: int | None


class LookupServable(Servable):
    """A version whose clients send keys of entities; the features are looked up, and the version gets both.

    Args:
        inner: The version that takes all features.
        features: The features and their origins.
        server: The feature server.
        limit: Bounds look-ups that run at once; None to create one for this version.

    Raises:
        ServingError: the version does not take a feature or its default, or requests cannot hold a key's type.
    """

    def __init__(
        self, inner: Servable, features: OnlineFeatures, server: FeatureServer, limit: LookupLimit | None = None
    ) -> None:
        definitions = SignatureDefMap.FromString(inner.signature_defs)
        self._columns = _columns(inner, features)
        for column in self._columns:
            if (default := features.defaults.get(column.name)) is not None:
                try:
                    _check_value(column, default)
                except ValueError as error:
                    raise invalid_argument(f"the default of {column.name!r} {error}") from error
        self.keys: Mapping[str, str] = features.key_types
        self._added = {name for name in self.keys if name not in inner.signature("").inputs}
        for name in list(definitions.signature_def):
            if name != "serving_default":
                del definitions.signature_def[name]  # they take serialized examples, which hold all features
        signature = definitions.signature_def["serving_default"]
        for column in self._columns:
            del signature.inputs[column.name]
        for name in self._added:
            fill_info(signature.inputs[name], name, KEY_TENSORS[self.keys[name]], (-1,))
        super().__init__(inner.model, inner.version, inner.path, definitions.SerializeToString())
        self.max_rows = inner.max_rows
        self._inner, self._features, self._server, self._limit = inner, features, server, limit or LookupLimit()

    def answer(self, call: Call) -> Reply:
        """Looks the features up, and calls the version.

        Raises:
            ServingError: the request has other inputs, the feature server does not answer, or a value is missing or of
                another type.
        """
        if call.method is not Method.PREDICT:
            raise invalid_argument(
                f"{call.method.label}: model {self.model} looks its features up by keys, which only Predict supports"
            )
        request = PredictRequest.FromString(call.message)
        signature = self.signature(request.model_spec.signature_name)
        if extra := sorted(set(request.inputs) - signature.inputs.keys()):
            raise invalid_argument(
                f"input {extra[0]!r} is not in the request's signature, which has {', '.join(signature.inputs)}; "
                "features of the feature store are looked up, and not sent"
            )
        if missing := sorted(self.keys.keys() - set(request.inputs)):
            raise invalid_argument(f"input {missing[0]!r} is missing, the key by which features are looked up")
        keys = {name: self._key_of(name, kind, request, signature) for name, kind in self.keys.items()}
        rows = count_rows(keys or {name: decode_input(name, value) for name, value in request.inputs.items()})
        if any(len(values) != rows for values in keys.values()):
            raise invalid_argument(f"keys differ in length: { {name: len(values) for name, values in keys.items()} }")
        try:
            arrays, times = self._look_up(keys, rows)
        except ValueError as error:
            raise invalid_argument(f"a key of the request cannot be looked up: {error}") from error
        for name, array in arrays.items():
            tensors.fill_proto(request.inputs[name], array)
        captured = PredictRequest()
        captured.CopyFrom(request)
        for name, moments in times.items():
            tensors.fill_proto(captured.inputs[value_time_input(name)], moments)
        for name in self._added:
            del request.inputs[name]
        reply = self._inner.answer(Call(call.method, request.SerializeToString(), call.deadline_s))
        return reply._replace(captured=captured.SerializeToString())

    def _key_of(self, name: str, kind: str, request: Any, signature: Signature) -> np.ndarray:
        """Returns the keys of all rows."""
        array, expected = decode_input(name, request.inputs[name]), signature.input_types[name]
        if expected is None or array.dtype != expected.numpy:
            raise invalid_argument(
                f"input {name!r} is {tensors.type_of(array).name}; expected {expected and expected.name}, the type of "
                "the keys by which features are looked up"
            )
        if array.ndim and array.size != len(array):
            raise invalid_argument(f"input {name!r} has the shape {array.shape}; expected one key for each row")
        if kind != "STRING" and array.dtype.kind == "f" and not np.all(np.isfinite(array) & (array == np.floor(array))):
            raise invalid_argument(f"input {name!r} has keys that are not integers; the view's keys are integers")
        return array.reshape(-1)

    def _look_up(
        self, keys: Mapping[str, np.ndarray], rows: int
    ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Returns the value and the time of the value, 0 for a default, of each column."""
        results = [[StoredValue(None, 0)] * rows for _ in self._columns]
        try:
            with self._limit.slot():
                if rows:
                    results = self._server.read([column.origin for column in self._columns], keys, rows)
        except FeatureServerError as error:
            if not self._features.default_if_down:
                raise ServingError(grpc.StatusCode.UNAVAILABLE, f"feature server: {error}") from error
        now_s = time.time()
        arrays, times = {}, {}
        for column, result in zip(self._columns, results, strict=True):
            if len(result) != rows:  # Feast 0.67: gives no times of values in an online store of the type remote
                raise ServingError(
                    grpc.StatusCode.DATA_LOSS,
                    f"feature server: it answers with {len(result)} values and times of {column.origin.view}:"
                    f"{column.origin.feature}; expected {rows}, one for each row; let it read the online store itself",
                )
            values = []
            for row, stored in enumerate(result):
                try:
                    values.append(self._value(column, stored, now_s))
                except ValueError as error:
                    key = {name: keys[name].item(row) for name in column.origin.keys.values()}
                    raise ServingError(
                        grpc.StatusCode.DATA_LOSS,
                        f"online store: {column.origin.view}:{column.origin.feature} of the key {key} {error}",
                    ) from error
            arrays[column.name] = _array(column, [value for value, _ in values])
            times[column.name] = np.array([moment for _, moment in values], np.int64)
        return arrays, times

    def _value(self, column: _Column, stored: StoredValue, now_s: float) -> tuple[Any, int]:
        """Returns a value and its time; the default and 0 if there is none, or it is too old.

        Raises:
            ValueError: the model does not take the value.
        """
        limit_s = self._features.max_age_s or column.origin.ttl_s
        if stored.value is not None and (limit_s is None or now_s - stored.event_s <= limit_s):
            _check_value(column, stored.value)
            return stored.value, int(stored.event_s)
        default = self._features.defaults.get(column.name)
        if default is not None:
            return default, 0
        if column.dtype.numpy.kind == "f" and column.width != -1:
            return np.nan if column.width is None else [np.nan] * column.width, 0
        if column.dtype is tensors.STRING:
            return b"", 0
        raise invalid_argument(
            f"feature {column.origin.view}:{column.origin.feature} has no value for a key of the request, and integers "
            f"and vectors of any width cannot be missing; deploy with a default for {column.name!r}"
        )

    def _free(self) -> None:
        self._inner.close()
        self._server.close()


def _columns(inner: Servable, features: OnlineFeatures) -> list[_Column]:
    signature = inner.signature("")
    columns = []
    for name, origin in features.columns.items():
        dtype = signature.input_types.get(name)
        if dtype is None:
            raise invalid_argument(
                f"the model does not take {name!r}, a feature of {origin.view!r}; it takes "
                f"{', '.join(signature.inputs)}"
            )
        for key, kind in origin.key_types.items():
            if kind not in KEY_TENSORS:
                raise invalid_argument(f"join key {key!r} is a {kind}; expected one of {', '.join(KEY_TENSORS)}")
        shape = signature.input_shapes.get(name, ())
        columns.append(_Column(name, origin, dtype, shape[1] if len(shape) == 2 else None))
    return columns


def _check_value(column: _Column, value: Any) -> None:
    """Raises ValueError if the model does not take a value, as it would not from a client."""
    if isinstance(value, ValueError):
        raise ValueError(f"cannot be read: {value}")
    is_vector = column.width is not None
    items = value if isinstance(value, list) else [value]
    if isinstance(value, list) != is_vector or (is_vector and column.width not in (-1, len(items))):
        width = "any width" if column.width == -1 else f"{column.width} values"
        raise ValueError(f"is {value!r:.100}; the model takes {f'a vector of {width}' if is_vector else 'one value'}")
    numpy = column.dtype.numpy
    allowed = _VALUE_TYPES.get(numpy.kind, ())
    for item in items:
        if type(item) not in allowed or (numpy.kind in "iuf" and not _is_held(item, numpy)):
            raise ValueError(f"is {value!r:.100}; the model takes {column.dtype.name}")


def _is_held(number: float, numpy: np.dtype) -> bool:
    """Returns whether a type holds a number, rounded only as in training."""
    if numpy.kind != "f":
        limits = np.iinfo(numpy)
        return bool(limits.min <= number <= limits.max)
    if isinstance(number, int) and abs(number) > _LARGEST_EXACT:
        return False
    return not math.isfinite(number) or bool(abs(number) <= np.finfo(numpy).max)


def _array(column: _Column, values: list[Any]) -> np.ndarray:
    if column.width == -1 and len(widths := sorted({len(value) for value in values})) > 1:
        raise ServingError(
            grpc.StatusCode.DATA_LOSS,
            f"online store: {column.origin.view}:{column.origin.feature} has vectors of {widths} values for the keys "
            "of the request; expected vectors of one width",
        )
    if column.dtype is tensors.STRING:
        array: np.ndarray = np.empty(len(values), object)
        array[:] = [value.encode() if isinstance(value, str) else value for value in values]
    else:
        array = np.asarray(values, column.dtype.numpy)
    return array if column.width is None else array.reshape(len(values), -1 if values else max(column.width, 0))
