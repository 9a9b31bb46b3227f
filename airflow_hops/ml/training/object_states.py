"""The state of the objects of a training beside its model's weights: callbacks, further optimizers, their generators.

It is found by a walk over attributes: variables of TensorFlow and Keras, random generators, and numbers, text, arrays
and containers of these in callbacks, in the user's own objects and closures, and in public attributes of models and
layers. An attribute counts once it has changed since the training began, so that what each try sets anew, such as a
folder, is not overwritten.

States are written into the objects that a new try makes. So callbacks must refer to objects, other than plain values,
as they did when the training began; otherwise no checkpoint is written.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import operator
import pkgutil
import random
import sys
import sysconfig
import types
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from airflow_hops.core.errors import BadInput

Arrays = dict[str, np.ndarray]

_GENERATORS: Mapping[type, tuple[Callable[[Any], Any], Callable[[Any, Any], Any]]] = {
    random.Random: (random.Random.getstate, random.Random.setstate),
    np.random.RandomState: (
        lambda generator: generator.get_state(legacy=False),
        lambda generator, state: generator.set_state(state),
    ),
    np.random.Generator: (
        lambda generator: generator.bit_generator.state,
        lambda generator, state: setattr(generator.bit_generator, "state", state),
    ),
}
_KERAS = (keras.Layer, keras.metrics.Metric, keras.optimizers.Optimizer, keras.random.SeedGenerator)
_SEQUENCES: Mapping[str, Any] = {"tuple": tuple, "list": list, "set": set, "frozenset": frozenset, "deque": deque}
_OF_ONE_TRY: Mapping[type, set[str]] = {
    keras.callbacks.EarlyStopping: {"min_delta"},  # its sign changes with monitor_op, which each try sets again
    keras.callbacks.ReduceLROnPlateau: {"min_delta"},
    keras.callbacks.TensorBoard: {"_is_tracing", "_profiler_started", "_should_trace"},
}


@dataclass(frozen=True)
class _State:
    """A value that can be read, and written back; only an attribute can be as it was when the training began."""

    read: Callable[[], Any]
    write: Callable[[Any], None]
    is_attribute: bool = False


_States = Iterator[tuple[str, _State]]


@dataclass(frozen=True)
class _Walk:
    """The objects that a walk has met: by their id, those with attributes by name, and those that callbacks have."""

    seen: dict[int, Any]
    owners: dict[str, Any] = field(default_factory=dict)
    objects: dict[str, Any] | None = field(default_factory=dict)

    def shape(self) -> dict[str, tuple[Any, ...]]:
        """Returns class, first name and items of each object that callbacks refer to, by name."""
        first: dict[int, str] = {}
        return {
            name: (type(value), first.setdefault(id(value), name), _items(value))
            for name, value in (self.objects or {}).items()
        }


class ObjectStates:
    """The state of objects that are reachable from some roots.

    Args:
        roots: The roots by name; ``model`` is the model.
        others: Returns variables that are not part of it.
    """

    def __init__(self, roots: Mapping[str, object], others: Callable[[], list[object]]) -> None:
        self._roots, self._others = roots, others
        walk = self._new_walk()
        states = {name: state for name, state in self._walk(walk) if state.is_attribute}
        first = {name: _encode_all(name, state) for name, state in states.items()}
        self._checksums = {name: _checksum(arrays) for name, arrays in first.items()}
        self._first = {name: arrays[0] for name, arrays in first.items() if len(arrays) == 1}
        self._shape = walk.shape()

    def begin(self) -> None:
        """Notes which objects there are; a training that resumes has the same ones when it restores its state."""
        walk = self._new_walk()
        deque(self._walk(walk), maxlen=0)
        self._shape = walk.shape()

    def changed(self) -> Arrays:
        """Returns the state that is not that of the beginning, as arrays by name.

        Raises:
            BadInput: a callback's ``get_state`` returns something else than numbers, text, arrays and containers, or a
                callback refers to an object that a training which resumes would not have there.
        """
        walk = self._new_walk()
        result: Arrays = {}
        in_graph = not getattr(self._roots["model"], "run_eagerly", True)
        for name, state in self._walk(walk):
            if in_graph and state.is_attribute and name.startswith("model."):
                continue  # a graph has the value of when it was made
            arrays = _encode_all(name, state)
            if self._checksums.get(name) != _checksum(arrays):
                result |= {f"{name}|{i}": array for i, array in enumerate(arrays)}
        for name, shape in walk.shape().items():
            if self._shape.get(name) != shape:
                raise BadInput(
                    f"{name} is another {shape[0].__qualname__} than when the training began, or has other items, "
                    "which a checkpoint cannot hold; make objects in __init__ or on_train_begin and change only their "
                    "attributes, use numbers, text, arrays, enums, named tuples, frozen dataclasses, and lists or "
                    "dicts of these alone, or give the callback get_state() and set_state(state)"
                )
        return result

    def restore(self, state: Mapping[str, np.ndarray], where: str) -> None:
        """Writes what :meth:`changed` has returned into the objects.

        Raises:
            BadInput: an object or the class of a value is missing; ``where`` names the checkpoint.
        """
        pending: dict[str, list[np.ndarray]] = {}
        for full in sorted(state, key=lambda full: int(full.rpartition("|")[2])):
            pending.setdefault(full.rpartition("|")[0], []).append(state[full])
        for name, current in self._walk(self._new_walk()):
            if name in self._first and name not in pending and current.is_attribute:
                current.write(_decode(json.loads(self._first[name].tobytes()), []))
        while pending:  # an attribute may hold objects that have states of their own
            walk = self._new_walk()
            states, owners = dict(self._walk(walk)), walk.owners
            ready = [
                name
                for name in pending
                if name in states or (name.rpartition(".")[0] in owners and not name.endswith("]"))
            ]
            if not ready:
                raise BadInput(
                    f"{where}: has a state of {min(pending)}, which this training does not have; make the same "
                    "callbacks, optimizers and metrics as before, or delete the checkpoint to start again"
                )
            for name in ready:
                content, *arrays = pending.pop(name)
                owner, _, attribute = name.rpartition(".")
                try:
                    value = _decode(json.loads(content.tobytes()), arrays)
                except (ImportError, AttributeError, ValueError) as error:  # of a class that has changed
                    raise BadInput(
                        f"{where}: {name} cannot be read: {error}; put the class back, or delete the checkpoint to "
                        "start again"
                    ) from None
                write = states[name].write if name in states else partial(_set, owners[owner], attribute)
                write(value)

    def _new_walk(self) -> _Walk:
        return _Walk({id(each): each for each in self._others()})

    def _walk(self, walk: _Walk) -> _States:
        for name, root in self._roots.items():
            yield from _states(root, name, walk)


def _states(value: object, name: str, walk: _Walk) -> _States:
    """Yields the states of an object and of the objects in it, by name; adds to the walk what it meets."""
    if walk.objects is not None and _is_object(value):
        walk.objects[name] = value
    seen = walk.seen
    if id(value) in seen:
        return
    seen[id(value)] = value
    if isinstance(value, keras.Variable | tf.Variable):
        if id(getattr(value, "_value", None)) not in seen:
            yield name, _State(value.numpy, value.assign)
    elif type(value) in _GENERATORS:
        read, write = _GENERATORS[type(value)]
        yield name, _State(partial(read, value), partial(write, value))
    elif isinstance(value, tf.random.Generator):
        yield from _states(value.state, name, walk)
    elif isinstance(value, dict | list | tuple | deque):
        for key, each in list(value.items() if isinstance(value, dict) else enumerate(value)):
            if not _is_plain(each):
                yield from _states(each, f"{name}[{key!r}]", walk)
            elif not isinstance(value, tuple):
                yield (
                    f"{name}[{key!r}]",
                    _State(partial(operator.getitem, value, key), partial(operator.setitem, value, key), True),
                )
    elif isinstance(value, types.FunctionType) and _is_own(value.__module__):
        for variable, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            if cell == types.CellType():
                continue
            if _is_plain(cell.cell_contents):
                yield (
                    f"{name}.{variable}",
                    _State(partial(getattr, cell, "cell_contents"), partial(_write, cell, "cell_contents"), True),
                )
            else:
                yield from _states(cell.cell_contents, f"{name}.{variable}", walk)
    elif isinstance(value, types.MethodType):
        yield from _states(value.__self__, f"{name}.__self__", walk)
    elif isinstance(value, _KERAS):
        walk = dataclasses.replace(walk, objects=None)  # Keras makes some of its objects during the training
        variables = [value.state] if isinstance(value, keras.random.SeedGenerator) else value.variables
        for number, variable in enumerate(variables):
            yield from _states(variable, f"{name}.variables[{number}]", walk)
        if not isinstance(value, keras.optimizers.Optimizer):
            yield from _attributes(value, name, walk)
    elif isinstance(value, enum.Enum | type):
        return
    elif isinstance(value, keras.callbacks.Callback) or _is_own(type(value).__module__):
        if hasattr(value, "get_state") and hasattr(value, "set_state"):
            yield name, _State(value.get_state, value.set_state)
        else:
            yield from _attributes(value, name, walk)


def _is_object(value: object) -> bool:
    """Returns whether a value has a state, or is a container with such values or with plain ones."""
    if isinstance(value, dict | list | tuple | deque | set | frozenset):
        items = value.values() if isinstance(value, dict) else value
        return any(_is_plain(each) or _is_object(each) for each in items)
    if isinstance(value, types.FunctionType):
        return _is_own(value.__module__)
    if isinstance(value, types.MethodType):
        return _is_object(value.__self__)
    known = (keras.Variable, tf.Variable, tf.random.Generator, *_GENERATORS, *_KERAS, keras.callbacks.Callback)
    return not isinstance(value, type) and (isinstance(value, known) or _is_own(type(value).__module__))


def _items(value: object) -> object:
    """Returns the distinction of an object from others of its class, if its states do not differ."""
    if isinstance(value, types.FunctionType | types.MethodType):
        return getattr(value, "__code__", None)
    if isinstance(value, enum.Enum):
        return value
    if isinstance(value, set | frozenset):
        return frozenset(value)
    if isinstance(value, tuple):  # its plain values have no state
        return [_checksum(_arrays(each)) if _is_plain(each) else None for each in value]
    if isinstance(value, list | deque):
        return [_is_plain(each) for each in value]
    return {repr(key): _is_plain(each) for key, each in value.items()} if isinstance(value, dict) else None


def _attributes(owner: object, name: str, walk: _Walk) -> _States:
    walk.owners[name] = owner
    skipped = {"model", "_model", "params", "_params", "validation_data"}
    skipped |= {each for kind, names in _OF_ONE_TRY.items() if isinstance(owner, kind) for each in names}
    state = object.__getstate__(owner)  # the attributes, or these and those in slots
    attributes = {k: v for each in (state if isinstance(state, tuple) else (state,)) for k, v in (each or {}).items()}
    for attribute, value in attributes.items():
        if attribute in skipped:
            continue
        if not _is_plain(value):
            yield from _states(value, f"{name}.{attribute}", walk)
        elif not isinstance(owner, _KERAS) or _is_of_user(owner, attribute, value):
            yield (
                f"{name}.{attribute}",
                _State(partial(getattr, owner, attribute), partial(_write, owner, attribute), True),
            )


def _write(owner: object, attribute: str, value: object) -> None:
    """Sets an attribute; a container keeps its type, and what refers to it."""
    existing = getattr(owner, attribute)
    if isinstance(existing, list | deque) and isinstance(value, list | deque):
        existing.clear()
        existing.extend(value)
    elif isinstance(existing, dict) and isinstance(value, dict):
        existing.clear()
        existing.update(value)
    else:
        _set(owner, attribute, value)


def _set(owner: object, attribute: str, value: object) -> None:
    """Sets an attribute, also of a frozen object; Keras tracks those of its own."""
    (setattr if isinstance(owner, _KERAS) else object.__setattr__)(owner, attribute, value)


def _is_of_user(owner: object, attribute: str, value: object) -> bool:
    """Returns whether a plain attribute of a model, layer or metric is a number of the user's, and not Keras's own."""
    is_number = value is None or isinstance(value, bool | int | float | str | enum.Enum)
    kind = next(kind for kind in (keras.Model, *_KERAS) if isinstance(owner, kind))
    return (
        is_number
        and _is_own(type(owner).__module__)
        and not attribute.startswith("_")
        and attribute not in _of_base(kind)
    )


@cache
def _of_base(kind: type) -> set[str]:
    return set(dir(kind(name="base")))


def _is_own(module: str) -> bool:
    """Returns whether a module is the user's code, and not a library."""
    file = getattr(sys.modules.get(module), "__file__", None) or ""
    is_library = "site-packages" in file or file.startswith(sysconfig.get_path("stdlib"))
    first = module.partition(".")[0]
    return not is_library and first != "airflow_hops" and first not in sys.builtin_module_names


def _is_plain(value: object) -> bool:
    try:
        _encode(value, [])
    except TypeError:
        return False
    return True


def _encode_all(name: str, state: _State) -> list[np.ndarray]:
    """Returns a state as JSON, in bytes, and the arrays in it."""
    try:
        return _arrays(state.read())
    except TypeError as error:
        raise BadInput(
            f"{name}.get_state() returns {error}, which a checkpoint cannot hold; expected numbers, text, arrays, and "
            "lists or dicts of these"
        ) from None


def _arrays(value: object) -> list[np.ndarray]:
    arrays: list[np.ndarray] = []
    content = json.dumps(_encode(value, arrays))
    return [np.frombuffer(content.encode(), np.uint8), *arrays]


def _encode(value: object, arrays: list[np.ndarray]) -> Any:
    """Returns a value as JSON; arrays are numbered.

    Raises:
        TypeError: it is not plain.
    """
    if value is None or type(value) in (bool, int, float, str):
        return value
    if (fields := _fields(value)) is not None:
        return {"kind": _path(type(value)), "items": _encode(fields, arrays)}
    if isinstance(value, np.ndarray | np.generic) or (isinstance(value, tf.Tensor) and hasattr(value, "numpy")):
        array = np.asarray(value)
        if array.dtype.kind in "biufcV":
            arrays.append(array)
            kind = "array" if isinstance(value, np.ndarray) else "tensor" if tf.is_tensor(value) else "scalar"
            return {"kind": kind, "number": len(arrays) - 1, "dtype": array.dtype.name}
    for kind, each in _SEQUENCES.items():
        if isinstance(value, each):
            return {"kind": kind, "items": [_encode(item, arrays) for item in value]}
    if isinstance(value, dict):
        return {"kind": "dict", "items": [[_encode(key, arrays), _encode(each, arrays)] for key, each in value.items()]}
    raise TypeError(f"a {type(value).__module__}.{type(value).__qualname__}")


def _decode(value: object, arrays: list[np.ndarray]) -> Any:
    if not isinstance(value, dict):
        return value
    kind = value["kind"]
    if kind in ("array", "tensor", "scalar"):
        array = arrays[value["number"]]
        array = array.view(value["dtype"]) if array.dtype.kind == "V" else array
        return array[()] if kind == "scalar" else tf.constant(array) if kind == "tensor" else array
    if kind == "dict":
        return {_decode(key, arrays): _decode(each, arrays) for key, each in value["items"]}
    if kind not in _SEQUENCES:
        return _make(pkgutil.resolve_name(kind), _decode(value["items"], arrays))
    return _SEQUENCES[kind](_decode(each, arrays) for each in value["items"])


def _fields(value: Any) -> Any:
    """Returns the parts of an immutable value of a class, or None if it is something else."""
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return tuple(value)
    options = vars(type(value)).get("__dataclass_params__")
    if options is None or not (options.frozen and options.eq):
        return None
    return {each.name: getattr(value, each.name) for each in dataclasses.fields(value) if hasattr(value, each.name)}


def _path(kind: type) -> str:
    """Returns the place of a class, as module:name.

    Raises:
        TypeError: it is not there, such as one that a function defines.
    """
    path = f"{kind.__module__}:{kind.__qualname__}"
    try:
        if pkgutil.resolve_name(path) is kind:
            return path
    except (ValueError, ImportError, AttributeError):
        pass
    raise TypeError(f"a {path}, which is not at the top level of its module")


def _make(kind: Any, fields: Any) -> object:
    """Returns the value of these :func:`_fields`."""
    if issubclass(kind, enum.Enum):
        return kind(fields)
    if issubclass(kind, tuple):
        return tuple.__new__(kind, fields)
    result = object.__new__(kind)
    for name, each in fields.items():
        object.__setattr__(result, name, each)
    return result


def _checksum(arrays: list[np.ndarray]) -> int:
    crc = 0
    for array in arrays:
        crc = zlib.crc32(np.ascontiguousarray(array).view(np.uint8).data if array.size else b"", crc)
    return crc
