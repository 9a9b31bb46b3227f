"""Hyperparameters in the form that :func:`airflow_hops.extensions.experiments.hops.experiment.launch` takes."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from airflow_hops.core.errors import BadInput, InvalidArgument
from airflow_hops.extensions.experiments.hops import absent
from airflow_hops.extensions.experiments.ml.program import plain

__getattr__ = absent.calls_of("util")


def lists_of(given: object, argument: str) -> dict[str, list[Any]]:
    """Returns lists, tuples or arrays by name as a dict of lists, with NumPy's values as Python's.

    Raises:
        BadInput: a value is something else, such as a string; the message names ``argument``.
    """
    if not isinstance(given, Mapping):
        raise InvalidArgument(argument, given, "; expected a dict with a list for each argument")
    results = {}
    for name, values in given.items():
        is_list = isinstance(values, list | tuple | range) or getattr(values, "ndim", 0) == 1
        if not isinstance(name, str) or not is_list:
            raise BadInput(f"{argument}[{name!r}] is {values!r}; expected the name of an argument, and a list")
        results[name] = [plain(value) for value in values]
    return results


def grid_params(args_dict: Mapping[str, Sequence[object]]) -> dict[str, list[object]]:
    """Returns all combinations of lists of values, as a list for each argument; the last argument varies fastest.

    Raises:
        BadInput: there are no arguments, or one has no values.
    """
    lists = lists_of(args_dict, "args_dict")
    if not lists or not all(lists.values()):
        raise InvalidArgument("args_dict", args_dict, "; expected arguments, each with a list of at least one value")
    columns = zip(*itertools.product(*lists.values()), strict=True)
    return {name: list(column) for name, column in zip(lists, columns, strict=True)}
