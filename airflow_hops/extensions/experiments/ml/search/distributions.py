"""Space of a search as Optuna's distributions."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from airflow_hops.extensions.experiments.core.search import Choice
from airflow_hops.extensions.experiments.core.search.space import Dimension, IntUniform, LogUniform


def distributions_of(dimensions: Mapping[str, Dimension] | None) -> dict[str, BaseDistribution]:
    """Returns Optuna's distributions of a space, without constants; none if a function defines the space."""
    return {
        name: _distribution(each)
        for name, each in (dimensions or {}).items()
        if not isinstance(each, Choice) or len(each.choices) > 1
    }


def encoded(dimensions: Mapping[str, Dimension] | None, name: str, value: Any) -> Any:
    """Returns a parameter's value for Optuna.

    It accepts neither lists nor objects as choices, and treats those that are equal in Python, such as 1, 1.0 and True,
    as one. Such choices are JSON for it.
    """
    dimension = (dimensions or {}).get(name)
    return json.dumps(value) if isinstance(dimension, Choice) and not _is_plain(dimension) else value


def decoded(dimensions: Mapping[str, Dimension], values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns all parameters for the user's code: those chosen by Optuna, and constants."""
    params = {}
    for name, each in dimensions.items():
        if not isinstance(each, Choice):
            params[name] = values[name]
        elif name not in values:
            params[name] = each.choices[0]
        else:
            params[name] = values[name] if _is_plain(each) else json.loads(values[name])
    return params


def _is_plain(choice: Choice) -> bool:
    is_scalar = all(each is None or isinstance(each, str | int | float) for each in choice.choices)
    return is_scalar and len(set(choice.choices)) == len(choice.choices)


def _distribution(dimension: Dimension) -> BaseDistribution:
    match dimension:
        case Choice(choices):
            return CategoricalDistribution(
                choices if _is_plain(dimension) else [json.dumps(value) for value in choices]
            )
        case IntUniform(low, high, step, log):
            return IntDistribution(low, high - (high - low) % step, log=log, step=step)
        case LogUniform(low, high):
            return FloatDistribution(low, high, log=True)
        case _:
            values, width = dimension.values(), dimension.step
            if values is None or width is None:
                return FloatDistribution(dimension.low, dimension.high)
            with warnings.catch_warnings():
                # Rounds down to the last value. Given that itself, it may round down to the one before.
                warnings.simplefilter("ignore", UserWarning)
                return FloatDistribution(dimension.low, values[-1] + width / 2, step=width)
