"""The states of the callbacks of a training, and of a model with ``get_state`` and ``set_state``.

Keras's callbacks and their subclasses have the attributes that Keras changes, others what their ``get_state`` returns.
A callback with further attributes and without these methods is refused, because a resumed training would differ.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import keras
import numpy as np

from airflow_hops.core.errors import BadInput

Arrays = dict[str, np.ndarray]

# What the callbacks of Keras 3.15 and tf_keras 2.16 change and neither on_train_begin nor on_epoch_begin sets anew.
_ATTRIBUTES: Mapping[str, tuple[str, ...]] = {
    "BaseLogger": ("seen", "totals"),
    "CSVLogger": (),
    "Callback": (),
    "EarlyStopping": ("best", "best_epoch", "best_weights", "stopped_epoch", "wait"),
    "History": ("epoch", "history"),
    "LambdaCallback": (),
    "LearningRateScheduler": (),
    "ModelCheckpoint": ("best", "epochs_since_last_save", "_batches_seen_since_last_saving", "_last_batch_seen"),
    "MonitorCallback": ("best",),
    "ProgbarLogger": (),
    "ReduceLROnPlateau": ("best", "cooldown_counter", "wait"),
    "RemoteMonitor": (),
    "SwapEMAWeights": ("_ema_weights_in_model",),
    "TensorBoard": ("_global_test_batch", "_global_train_batch"),
    "TensorBoardVersionSelector": (),
    "TerminateOnNaN": (),
}
_METHODS = ("get_state", "set_state")
_EXPECTED = "numbers, text, arrays, and lists, tuples or dicts of these"


class CallbackStates:
    """The states of callbacks and their model.

    Args:
        model: The model.
        callbacks: The callbacks.

    Raises:
        BadInput: a callback has attributes that no checkpoint would hold; so do the methods.
    """

    def __init__(self, model: object, callbacks: Sequence[object] = ()) -> None:
        self._owners = {f"callback {number} {type(each).__name__}": each for number, each in enumerate(callbacks)}
        self._model = model
        self.check()

    def check(self) -> None:
        """Checks that :meth:`read` has the whole state of each callback."""
        _has_methods("model", self._model)
        for name, owner in self._owners.items():
            _check(name, owner)

    def read(self) -> Arrays:
        """Returns the states as arrays by name; raises BadInput if one holds other values than plain ones."""
        self.check()
        result: Arrays = {}
        for name, owner in {"model": self._model, **self._owners}.items():
            attributes = () if owner is self._model else _attributes_of(type(owner))
            state: dict[str, object] = {each: getattr(owner, each) for each in attributes if hasattr(owner, each)}
            if _has_methods(name, owner):
                state["get_state()"] = owner.get_state()  # type: ignore[attr-defined]
            arrays: list[np.ndarray] = []
            try:
                content = json.dumps({key: _encode(value, arrays) for key, value in state.items()}).encode()
            except TypeError as error:
                raise BadInput(
                    f"{name}: its state holds {error}, which a checkpoint cannot hold; expected {_EXPECTED}"
                ) from None
            if state:
                arrays.insert(0, np.frombuffer(content, np.uint8))
                result |= {f"{name}|{number}": array for number, array in enumerate(arrays)}
        return result

    def write(self, states: Mapping[str, np.ndarray], where: str) -> None:
        """Restores what :meth:`read` has returned; raises BadInput if a callback is missing in this training.

        Args:
            states: The states.
            where: The checkpoint, for errors.
        """
        owners = {"model": self._model, **self._owners}
        for name in dict.fromkeys(full.rpartition("|")[0] for full in states):
            count = sum(full.rpartition("|")[0] == name for full in states)
            content, *arrays = [states[f"{name}|{number}"] for number in range(count)]
            state = {key: _decode(value, arrays) for key, value in json.loads(content.tobytes()).items()}
            owner = owners.get(name)
            if owner is None or ("get_state()" in state and not _has_methods(name, owner)):
                raise BadInput(
                    f"{where}: has a state of {name}, which this training does not have; give fit the same callbacks, "
                    "with the same methods, or delete the checkpoint to start again"
                )
            if "get_state()" in state:
                owner.set_state(state.pop("get_state()"))  # type: ignore[attr-defined]
            for attribute, value in state.items():
                setattr(owner, attribute, value)


def _check(name: str, owner: object) -> None:
    """Raises BadInput if a callback may have a state that cannot be read."""
    if _has_methods(name, owner):
        return
    kinds = [kind for kind in type(owner).__mro__ if kind is not object]
    of_keras = [kind for kind in kinds if _is_keras(kind)]
    unknown = [kind.__name__ for kind in of_keras if kind.__name__ not in _ATTRIBUTES]
    state = object.__getstate__(owner)  # the attributes, or these and those in slots
    further = {each for part in (state if isinstance(state, tuple) else (state,)) for each in part or ()}
    further -= {*dir(keras.callbacks.Callback)}
    if further and not unknown:
        further -= {each for kind in of_keras for each in _names_in(kind)}
    further |= {
        each
        for kind in kinds
        if kind not in of_keras
        for each, value in vars(kind).items()
        if type(value).__hash__ is None and not each.startswith("__")  # a list or dict that all instances share
    }
    if unknown or further:
        reason = f"the state of Keras's {unknown[0]}" if unknown else f"attributes {sorted(further)}"
        raise BadInput(
            f"{name}, a {type(owner).__module__}.{type(owner).__qualname__}, has {reason}, which no checkpoint would "
            f"hold, so that a resumed training might differ; give it get_state(), which returns {_EXPECTED}, or None "
            "if nothing changes during a training, and set_state(state)"
        )


def _has_methods(name: str, owner: object) -> bool:
    present = [each for each in _METHODS if hasattr(owner, each)]
    if len(present) == 1:
        raise BadInput(f"{name} has {present[0]} alone, expected both get_state() and set_state(state), or neither")
    return bool(present)


def _attributes_of(kind: type) -> tuple[str, ...]:
    return tuple(each for base in kind.__mro__ if _is_keras(base) for each in _ATTRIBUTES.get(base.__name__, ()))


def _is_keras(kind: type) -> bool:
    return kind.__module__.partition(".")[0] in ("keras", "tf_keras")


@cache
def _names_in(kind: type) -> frozenset[str]:
    """Returns the names of the attributes that a class of Keras uses."""
    return frozenset(re.findall(r"\bself\.(\w+)", inspect.getsource(kind)))


def _encode(value: object, arrays: list[np.ndarray]) -> Any:
    """Returns a value as JSON; arrays are numbered, and TypeError is raised for what is not plain."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biufcV":
        arrays.append(np.asarray(value))
        kind = "array" if isinstance(value, np.ndarray) else "scalar"
        return {"kind": kind, "number": len(arrays) - 1, "dtype": value.dtype.name}
    if type(value) in (list, tuple):
        return {"kind": type(value).__name__, "items": [_encode(each, arrays) for each in value]}  # type: ignore[attr-defined]
    if type(value) is dict:
        items = [[_encode(key, arrays), _encode(each, arrays)] for key, each in value.items()]
        return {"kind": "dict", "items": items}
    raise TypeError(f"a {type(value).__module__}.{type(value).__qualname__}")


def _decode(value: Any, arrays: Sequence[np.ndarray]) -> Any:
    if not isinstance(value, dict):
        return value
    if "number" in value:
        array = arrays[value["number"]]
        array = array.view(value["dtype"]) if array.dtype.kind == "V" else array  # such as bfloat16
        return array[()] if value["kind"] == "scalar" else array
    items = value["items"]
    if value["kind"] == "dict":
        return {_decode(key, arrays): _decode(each, arrays) for key, each in items}
    decoded = [_decode(each, arrays) for each in items]
    return tuple(decoded) if value["kind"] == "tuple" else decoded
