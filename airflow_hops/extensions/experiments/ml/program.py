"""Function of an experiment in the processes forked to run it, which need neither import nor unpickle it."""

from __future__ import annotations

import functools
import hashlib
import inspect
import pickle
import uuid
from collections.abc import Callable, Mapping
from types import CellType, ModuleType, SimpleNamespace
from typing import Any

from airflow_hops.core.errors import BadInput, InvalidArgument
from airflow_hops.ml.training.context import TrainContext

TRAIN = f"{__name__}:call"
CALL = "call_number"
"""Parameter that distinguishes calls with equal arguments."""


def function_name(function: Callable[..., Any]) -> str:
    """Returns a readable name."""
    return getattr(function, "__name__", type(function).__name__)


def check_takes(function: Callable[..., Any], params: Mapping[str, object]) -> None:
    """Raises ``BadInput`` if this is no function, or cannot be called with these hyperparameters."""
    if not callable(function):
        raise InvalidArgument("train_fn", function, "; expected a function")
    if CALL in params:
        raise BadInput(f"an argument is called {CALL!r}, which is reserved for the number of a call; rename it")
    try:
        inspect.signature(function).bind(**params)
    except TypeError as error:
        values = ", ".join(params) or "no arguments"
        raise BadInput(f"{function_name(function)}() cannot be called with {values}: {error}") from None
    except ValueError:
        return


def arguments(params: Mapping[str, object]) -> dict[str, Any]:
    """Returns the arguments of a trial with these parameters."""
    return {name: value for name, value in params.items() if name != CALL}


def identity(value: object, above: tuple[int, ...] = ()) -> str:
    """Returns a digest of a function: its source, its defaults, and the values that it is bound to or closes over.

    An object that has no source and cannot be pickled gets a new digest each time, since its code may have changed.
    Modules count by their names; functions that it only calls do not count.
    """
    if isinstance(value, ModuleType) or id(value) in above:  # a function may close over itself
        return getattr(value, "__name__", "")
    try:
        if not callable(value):
            digest = hashlib.sha256()
            pickle.dump(value, SimpleNamespace(write=digest.update))  # values may be gigabytes
            return digest.hexdigest()
        source, parts = _source_and_values(value)
    except Exception:  # a class's own code may raise any error in pickle
        return uuid.uuid4().hex
    text = "\n".join([source, *(identity(part, (*above, id(value))) for part in parts)])
    return hashlib.sha256(text.encode()).hexdigest()


def _source_and_values(function: Any) -> tuple[str, list[object]]:
    """Returns the source and the values that belong to it. Raises OSError or TypeError for an object without source."""
    if isinstance(function, functools.partial):
        return "partial", [function.func, *function.args, *function.keywords, *function.keywords.values()]
    bare = inspect.unwrap(getattr(function, "__func__", function))
    if inspect.isclass(bare):
        return inspect.getsource(bare), []
    if not inspect.isfunction(bare):
        return inspect.getsource(type(bare)), [*vars(bare), *vars(bare).values()]
    cells = [cell.cell_contents for cell in bare.__closure__ or () if cell != CellType()]  # an empty cell has no value
    defaults = [*(bare.__defaults__ or ()), *(bare.__kwdefaults__ or {}).values()]
    return inspect.getsource(bare), [getattr(function, "__self__", None), *defaults, *cells]


running: list[Callable[..., Any]] = []
"""Function of the current experiment, for processes forked from this one."""


def call(context: TrainContext) -> Any:
    """Calls the user's function with a trial's parameters; NumPy's numbers in its result become Python numbers."""
    strategy = context.strategy
    if strategy is not None:
        import tensorflow as tf

        # TensorFlow 2.16: a process can join a cluster only once, so code that makes its own strategy gets this one.
        for module in (tf.distribute, tf.distribute.experimental):
            for name in ("MultiWorkerMirroredStrategy", "ParameterServerStrategy"):
                if isinstance(strategy, getattr(module, name)):
                    setattr(module, name, lambda *_, **__: strategy)
    return plain(running[-1](**arguments(context.params)))


def plain(value: object) -> Any:
    """Converts numbers of NumPy and TensorFlow to Python's, also within mappings."""
    if isinstance(value, Mapping):
        return {name: plain(item) for name, item in value.items()}
    if hasattr(value, "numpy") and not hasattr(value, "get_weights"):
        value = value.numpy()
    return value.item() if getattr(value, "ndim", None) == 0 and hasattr(value, "item") else value
