"""The function of an experiment in the processes forked to run it: it need not be imported, nor pickled."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import inspect
import pickle
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import CellType, ModuleType, SimpleNamespace
from typing import Any

from airflow_hops.core.contract.artifacts import BadInput
from airflow_hops.ml.training.context import TrainContext

TRAIN = f"{__name__}:call"
ROWS = f"{__name__}:row"
_NUMBER = "row number"
"""The parameter that tells trials of equal arguments apart; no argument of Python's has such a name."""


@dataclasses.dataclass(frozen=True)
class UserFunction:
    """The user's code of an experiment.

    Attributes:
        function: The user's.
        rows: Its arguments in each trial, where they are given one by one; None where a search proposes them.
        left: Numbers of the rows that no trial has yet.
    """

    function: Callable[..., Any]
    rows: Sequence[Mapping[str, Any]] | None = None
    left: list[int] = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise BadInput(f"train_fn is {self.function!r}; expected a function")
        object.__setattr__(self, "left", list(range(len(self.rows or ()))))

    def leave_out(self, trials: Iterable[Mapping[str, Any]]) -> None:
        """Leaves out the rows that trials have, whose parameters these are."""
        done = {params.get(_NUMBER) for params in trials}
        self.left[:] = [number for number in self.left if number not in done]

    @property
    def name(self) -> str:
        """Returns a name for people."""
        return getattr(self.function, "__name__", type(self.function).__name__)

    @property
    def source(self) -> str:
        """Its source; empty where there is none, as of a builtin."""
        try:
            return inspect.getsource(inspect.unwrap(self.function))
        except (OSError, TypeError):
            return ""

    def check_takes(self, params: Mapping[str, Any]) -> None:
        """Looks whether it can be called with these hyperparameters.

        Raises:
            BadInput: it cannot.
        """
        if _NUMBER in params:
            raise BadInput(f"an argument is called {_NUMBER!r}, which is kept for the number of a call; rename it")
        try:
            inspect.signature(self.function).bind(**params)
        except TypeError as error:
            values = ", ".join(params) or "no arguments"
            raise BadInput(f"{self.name}() cannot be called with {values}: {error}") from None
        except ValueError:
            return

    def arguments(self, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """The arguments of a trial with these parameters."""
        return {name: value for name, value in params.items() if name != _NUMBER or self.rows is None}


def identity(value: Any, above: tuple[int, ...] = ()) -> str:
    """A digest of a function: its source, its defaults, and the values that it is bound to or closes over.

    Where something has no source, and cannot be pickled, it is another one each time: nothing passes for the work of a
    function that may have changed. Modules count by their names; functions that it only calls do not count.
    """
    if isinstance(value, ModuleType) or id(value) in above:  # a function may close over itself
        return getattr(value, "__name__", "")
    try:
        if not callable(value):
            digest = hashlib.sha256()
            pickle.dump(value, SimpleNamespace(write=digest.update))  # what may be gigabytes is not held twice
            return digest.hexdigest()
        source, parts = _source_and_values(value)
    except Exception:  # pickle raises whatever a class's own code does
        return uuid.uuid4().hex
    text = "\n".join([source, *(identity(part, (*above, id(value))) for part in parts)])
    return hashlib.sha256(text.encode()).hexdigest()


def _source_and_values(function: Any) -> tuple[str, list[Any]]:
    """Its source, and the values that belong to it. Raises OSError or TypeError where there is no source."""
    if isinstance(function, functools.partial):
        return "partial", [function.func, *function.args, *function.keywords, *function.keywords.values()]
    bare = inspect.unwrap(getattr(function, "__func__", function))
    if inspect.isclass(bare):
        return inspect.getsource(bare), []
    if not inspect.isfunction(bare):
        return inspect.getsource(type(bare)), [*vars(bare), *vars(bare).values()]
    cells = [cell.cell_contents for cell in bare.__closure__ or () if cell != CellType()]  # an empty one has no value
    defaults = [*(bare.__defaults__ or ()), *(bare.__kwdefaults__ or {}).values()]
    return inspect.getsource(bare), [getattr(function, "__self__", None), *defaults, *cells]


running: list[UserFunction] = []
"""The experiment's function, for the processes that are forked of this one."""


def call(context: TrainContext) -> Any:
    """Returns the function of a training, with the trial's parameters.

    Returns:
        What it returned, NumPy's numbers as Python's.
    """
    user, strategy = running[-1], context.strategy
    if strategy is not None:
        import tensorflow as tf

        # Code that makes its own strategy gets this one: TensorFlow can join a cluster once in a process.
        for module in (tf.distribute, tf.distribute.experimental):
            for name in ("MultiWorkerMirroredStrategy", "ParameterServerStrategy"):
                if isinstance(strategy, getattr(module, name)):
                    setattr(module, name, lambda *_, **__: strategy)
    return plain(user.function(**user.arguments(context.params)))


def row(_: Any) -> dict[str, Any]:
    """The parameters of an Optuna trial: the next of the given rows."""
    user = running[-1]
    number = user.left.pop(0)
    return {_NUMBER: number, **(user.rows or ())[number]}


def plain(value: Any) -> Any:
    """Numbers of NumPy and TensorFlow as Python's, within mappings too."""
    if isinstance(value, Mapping):
        return {name: plain(item) for name, item in value.items()}
    if hasattr(value, "numpy") and not hasattr(value, "get_weights"):
        value = value.numpy()
    return value.item() if getattr(value, "ndim", None) == 0 and hasattr(value, "item") else value
