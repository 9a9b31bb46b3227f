"""Options of a search, shared by the operator and the step."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from airflow_hops.core.errors import BadInput, InvalidArgument
from airflow_hops.core.json_fields import StepOptions
from airflow_hops.core.names import check_known
from airflow_hops.extensions.experiments.core.search.space import Dimension, is_number, space_of_dict, space_to_dict

Sampler = Literal["tpe", "random", "grid", "cmaes", "differential_evolution"]
Pruner = Literal["none", "median", "asha", "hyperband"]
Direction = Literal["minimize", "maximize"]


@dataclass(frozen=True)
class SearchOptions(StepOptions):
    """Options of a search; JSON values, whose types the operator has checked.

    Attributes:
        training: :class:`~airflow_hops.core.training.options.TrainingOptions` of each trial as JSON; its ``params``
            are constants, to which those of the trial are added.
        space: The result of :func:`space_to_dict`; or ``module:function``, called with an ``optuna.Trial``, which
            returns the parameters, including conditional ones.
        metrics: Metrics to optimize, one for each objective.
        directions: ``minimize`` or ``maximize``, for each metric.
        reuse: Whether to reuse an earlier trial with the same code, data and parameters.

    The others are arguments of ``SearchOperator``.

    Raises:
        BadInput: an option is invalid.
    """

    training: Mapping[str, Any]
    space: Mapping[str, Any] | str
    metrics: Sequence[str]
    directions: Sequence[Direction]
    trials: int | None = 20
    parallel: int = 1
    sampler: Sampler = "tpe"
    pruner: Pruner = "none"
    timeout_s: float | None = None
    seed: int = 0
    study: str | None = None
    choose: str | None = None
    refit: bool = False
    refit_np: int | None = None
    reuse: bool = True
    max_failures: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.space, str):
            object.__setattr__(self, "space", space_to_dict(self.space))
        for name, values in (("metrics", self.metrics), ("directions", self.directions)):
            if isinstance(values, str) or not values or not all(isinstance(v, str) and v for v in values):
                raise InvalidArgument(name, values, ", expected a list of at least one text")
            object.__setattr__(self, name, tuple(values))
        if len(self.metrics) != len(self.directions) or len(set(self.metrics)) != len(self.metrics):
            raise BadInput(
                f"metrics are {list(self.metrics)} and directions {list(self.directions)}; expected different metrics, "
                "and a direction for each"
            )
        if self.study is not None and (not isinstance(self.study, str) or self.study.strip() in ("", ".", "..")):
            raise InvalidArgument("study", self.study, ", expected a name, or None for a separate study in each run")
        if self.choose is not None:
            check_known("choose", self.choose, self.metrics)
        if not is_number(self.seed, (int,)) or not 0 <= self.seed < 1 << 32:
            raise InvalidArgument("seed", self.seed, ", expected an integer from 0 to 4294967295")
        several = len(self.metrics) > 1
        if several and self.pruner != "none":
            raise BadInput(f"pruner is {self.pruner!r}, expected 'none': trials of several metrics cannot be pruned")
        if several and self.sampler in ("cmaes", "differential_evolution"):
            raise InvalidArgument("sampler", self.sampler, ", which optimizes one metric; expected tpe, random or grid")
        if self.sampler == "grid":
            self.grid()
        elif self.trials is None:
            raise BadInput(f"trials is None with sampler {self.sampler!r}; expected a number, 1 or more")

    def dimensions(self) -> dict[str, Dimension] | None:
        """Returns the space's dimensions by name; None if a function defines the space."""
        return None if isinstance(self.space, str) else space_of_dict(self.space)

    def grid(self) -> dict[str, list[object]]:
        """Returns the values of each parameter of a grid.

        Raises:
            BadInput: a parameter has infinitely many values, or a function defines the space.
        """
        dimensions = self.dimensions()
        if dimensions is None:
            raise BadInput(f"sampler 'grid' needs a space of values, found the function {self.space!r}")
        results = {}
        for name, dimension in dimensions.items():
            values = dimension.values()
            if values is None:
                raise BadInput(
                    f"space[{name!r}] is {dimension}, which sampler 'grid' cannot enumerate; give a list of values, an "
                    "IntUniform or a Uniform with a step, or take another sampler"
                )
            results[name] = values
        return results

    def points(self) -> Iterator[dict[str, Any]]:
        """Yields the points of a grid in order; the last parameter changes first."""
        grid = self.grid()
        return (dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values()))

    @property
    def trials_share(self) -> float:
        """Returns the share of the trials in all of the work; training the winner again counts as one more."""
        return self.wanted / (self.wanted + self.refit)

    @property
    def wanted(self) -> int:
        """Returns the number of trials to make."""
        points = math.prod(map(len, self.grid().values())) if self.sampler == "grid" else None
        numbers = [number for number in (self.trials, points) if number is not None]
        return min(numbers)

    @property
    def allowed_failures(self) -> int:
        """Returns the number of trials that may fail."""
        return max(3, self.wanted // 3) if self.max_failures is None else self.max_failures

    @property
    def chosen(self) -> int:
        """Returns the index of the metric that determines the winner."""
        return 0 if self.choose is None else list(self.metrics).index(self.choose)
