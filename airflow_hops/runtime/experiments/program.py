"""The function of an experiment in the processes forked to run it: it need not be imported, nor pickled."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from airflow_hops.contract.artifacts import BadInput
from airflow_hops.hops.context import TrainContext

TRAIN = f"{__name__}:call"
ROWS = f"{__name__}:row"
_NUMBER = "combination"


@dataclasses.dataclass(frozen=True)
class UserFunction:
    """What an experiment runs.

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
        """What to call it."""
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
        try:
            inspect.signature(self.function).bind(**params)
        except TypeError as error:
            given = ", ".join(params) or "no arguments"
            raise BadInput(f"{self.name}() cannot be called with {given}: {error}") from None
        except ValueError:
            return

    def arguments(self, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """The arguments of a trial with these parameters."""
        return {name: value for name, value in params.items() if name != _NUMBER or self.rows is None}


running: list[UserFunction] = []
"""The experiment's function, for the processes that are forked of this one."""


def call(context: TrainContext) -> Any:
    """What a training calls: the function, with the trial's parameters.

    Returns:
        What it returned, NumPy's numbers as Python's.
    """
    user = running[-1]
    _offer_strategy(context.strategy)
    return _plain(user.function(**user.arguments(context.params)))


def row(_: Any) -> dict[str, Any]:
    """The parameters of an Optuna trial: the next of the given rows."""
    user = running[-1]
    number = user.left.pop(0)
    return {_NUMBER: number, **(user.rows or ())[number]}


def _offer_strategy(strategy: Any) -> None:
    """Gives code that makes its own strategy the one there is: TensorFlow can join a cluster once in a process."""
    if strategy is None:
        return
    import tensorflow as tf

    for module in (tf.distribute, tf.distribute.experimental):
        for name in ("MultiWorkerMirroredStrategy", "ParameterServerStrategy"):
            if isinstance(strategy, getattr(module, name)):
                setattr(module, name, functools.partial(_the_strategy, strategy))


def _the_strategy(strategy: Any, *_: Any, **__: Any) -> Any:
    return strategy


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    if hasattr(value, "numpy") and not hasattr(value, "get_weights"):
        value = value.numpy()
    return value.item() if getattr(value, "ndim", None) == 0 and hasattr(value, "item") else value
