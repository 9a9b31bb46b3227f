"""Hyperparameters in the form that :func:`airflow_hops.runtime.hops_api.experiment.launch` takes."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from airflow_hops.contract.artifacts import BadInput


def grid_params(args_dict: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
    """All combinations of values, as a list for each argument; the last argument changes first.

    Args:
        args_dict: A list of values for each argument.

    Raises:
        BadInput: there is no argument, or one without values.
    """
    if not args_dict or not all(len(values) for values in args_dict.values()):
        raise BadInput(f"args_dict is {args_dict!r}; expected arguments, each with a list of at least one value")
    columns = zip(*itertools.product(*args_dict.values()), strict=True)
    return {name: list(column) for name, column in zip(args_dict, columns, strict=True)}
