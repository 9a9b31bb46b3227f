"""Experiments: one call of a function, many with different hyperparameters, or one on many processes.

Each function may have a ``SparkSession`` as its first argument; the number of its executors is then how many processes
run at once, on this machine. It returns the folder of the experiment first.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from airflow_hops.contract.artifacts import BadInput
from airflow_hops.contract.search.space import IntUniform, Uniform, is_number
from airflow_hops.contract.training import HOROVOD, MULTI_WORKER_MIRRORED, PARAMETER_SERVER, SINGLE
from airflow_hops.hops.devices import get_num_gpus
from airflow_hops.runtime.experiments import Experiment, run_experiment
from airflow_hops.runtime.gang import LocalRanks

log = logging.getLogger(__name__)

Found = tuple[str, Mapping[str, Any]]
"""The experiment's folder in the store, and what the function returned, by name; a number alone is ``metric``."""

Best = tuple[str, Mapping[str, Any], Mapping[str, Any]]
"""The experiment's folder in the store, the best hyperparameters, and what the function returned for them, by name."""

_Function = TypeVar("_Function", bound=Callable[..., Any])


class Direction:
    """The directions of a search."""

    MAX = "max"
    MIN = "min"


def _spark_may_be_first(function: _Function) -> _Function:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if args and (args[0] is None or hasattr(args[0], "sparkContext")):
            args, kwargs = args[1:], {**kwargs, "spark": args[0]}
        return function(*args, **kwargs)

    return call  # type: ignore[return-value]


@_spark_may_be_first
def launch(
    train_fn: Callable[..., Any],
    args_dict: Mapping[str, Sequence[Any]] | None = None,
    name: str = "no-name",
    local_logdir: bool = False,
    versioned_resources: Sequence[str] | None = None,
    description: str | None = None,
    *,
    spark: Any = None,
) -> Found:
    """Calls a function once, or for each combination of arguments, several at once.

    Args:
        train_fn: The function.
        args_dict: Lists of equal length: the first call gets the first value of each, and so on. Product of lists:
            :func:`airflow_hops.runtime.hops_api.util.grid_params`.
        name: Of the experiment.
        local_logdir: Taken for compatibility: the log folder is local always, and is kept in the store.
        versioned_resources: Files to keep with the experiment.
        description: Of the experiment.
        spark: A ``SparkSession``.

    Raises:
        BadInput: the lists differ in length, or the function does not take the arguments.
        HopsError: a call failed; those that run are ended.
    """
    lengths = {key: len(values) for key, values in (args_dict or {}).items()}
    if len(set(lengths.values())) > 1 or 0 in lengths.values():
        raise BadInput(f"args_dict has lists of {lengths} values; expected as many for each argument, 1 or more")
    rows = [dict(zip(lengths, values, strict=True)) for values in zip(*(args_dict or {}).values(), strict=True)]
    kept = _kept(name, versioned_resources, description, spark)
    outcome = run_experiment(Experiment(train_fn, "launch", rows=rows or [{}], **kept))
    return outcome.path, outcome.returned


@_spark_may_be_first
def grid_search(
    train_fn: Callable[..., Any],
    args_dict: Mapping[str, Sequence[Any]],
    direction: str = Direction.MAX,
    name: str = "no-name",
    local_logdir: bool = False,
    versioned_resources: Sequence[str] | None = None,
    description: str | None = None,
    optimization_key: str = "metric",
    *,
    spark: Any = None,
) -> Best:
    """Calls a function with every combination of values.

    Args:
        train_fn: The function; it returns a number, or a dict of them.
        args_dict: A list of values for each argument.
        direction: ``max`` or ``min``.
        optimization_key: Which entry of a dict that the function returns is optimized.
        name: Of the experiment.
        local_logdir: As for :func:`launch`.
        versioned_resources: Files to keep with the experiment.
        description: Of the experiment.
        spark: A ``SparkSession``.

    Raises:
        BadInput: an argument cannot be used, or the function returns no number.
        HopsError: too many calls failed.
    """
    space = {key: list(values) for key, values in args_dict.items()}
    search = Experiment(
        train_fn,
        "grid_search",
        space=space,
        metric=optimization_key,
        direction=direction,
        sampler="grid",
        **_kept(name, versioned_resources, description, spark),
    )
    return _best(search)


@_spark_may_be_first
def random_search(
    train_fn: Callable[..., Any],
    boundary_dict: Mapping[str, Sequence[Any]],
    direction: str = Direction.MAX,
    samples: int = 10,
    name: str = "no-name",
    local_logdir: bool = False,
    versioned_resources: Sequence[str] | None = None,
    description: str | None = None,
    optimization_key: str = "metric",
    *,
    spark: Any = None,
) -> Best:
    """Calls a function with random values between bounds.

    Args:
        train_fn: The function; it returns a number, or a dict of them.
        boundary_dict: Lower and upper bound of each argument, both included; of integers integers are drawn.
        direction: ``max`` or ``min``.
        samples: How many calls.
        optimization_key: Which entry of a dict that the function returns is optimized.
        name: Of the experiment.
        local_logdir: As for :func:`launch`.
        versioned_resources: Files to keep with the experiment.
        description: Of the experiment.
        spark: A ``SparkSession``.

    Raises:
        BadInput: an argument cannot be used, or the function returns no number.
        HopsError: too many calls failed.
    """
    search = Experiment(
        train_fn,
        "random_search",
        space=_between(boundary_dict),
        metric=optimization_key,
        direction=direction,
        trials=samples,
        **_kept(name, versioned_resources, description, spark),
    )
    return _best(search)


@_spark_may_be_first
def differential_evolution(
    train_fn: Callable[..., Any],
    boundary_dict: Mapping[str, Sequence[Any]],
    direction: str = Direction.MAX,
    generations: int = 4,
    population: int = 6,
    mutation: float = 0.5,
    crossover: float = 0.7,
    name: str = "no-name",
    local_logdir: bool = False,
    versioned_resources: Sequence[str] | None = None,
    description: str | None = None,
    optimization_key: str = "metric",
    *,
    spark: Any = None,
) -> Best:
    """Searches by differential evolution (Storn and Price 1997), without a round in which calls wait for each other.

    Args:
        train_fn: The function; it returns a number, or a dict of them.
        boundary_dict: Lower and upper bound of each argument, both included.
        direction: ``max`` or ``min``.
        generations: How often each member of the population is crossed, its random beginning included.
        population: Number of members, 4 or more.
        mutation: Factor of the difference of two members.
        crossover: Share of the arguments that come from the mutant.
        optimization_key: Which entry of a dict that the function returns is optimized.
        name: Of the experiment.
        local_logdir: As for :func:`launch`.
        versioned_resources: Files to keep with the experiment.
        description: Of the experiment.
        spark: A ``SparkSession``.

    Raises:
        BadInput: an argument cannot be used, or the function returns no number.
        HopsError: too many calls failed.
    """
    if population < 4 or generations < 1:
        raise BadInput(f"population is {population}, generations {generations}; expected 4 or more, 1 or more")

    def sampler() -> Any:
        from airflow_hops.runtime.search.differential_evolution import DifferentialEvolutionSampler

        return DifferentialEvolutionSampler(0, population=population, weight=mutation, crossover=crossover)

    search = Experiment(
        train_fn,
        "differential_evolution",
        space=_between(boundary_dict),
        metric=optimization_key,
        direction=direction,
        sampler="differential_evolution",
        make_sampler=sampler,
        trials=generations * population,
        **_kept(name, versioned_resources, description, spark),
    )
    return _best(search)


def _distributed(called: str, strategy: str) -> Callable[..., Found]:
    @_spark_may_be_first
    def run(
        train_fn: Callable[..., Any],
        name: str = "no-name",
        local_logdir: bool = False,
        versioned_resources: Sequence[str] | None = None,
        description: str | None = None,
        *,
        spark: Any = None,
    ) -> Found:
        kept = _kept(name, versioned_resources, description, spark)
        training: dict[str, Any] = {"strategy": strategy, "np": 1}
        if strategy != SINGLE:
            training["np"] = kept.pop("executors") or LocalRanks().slots
        elif get_num_gpus() > 1:
            log.warning("mirrored() trains on one GPU of the %d; take collective_all_reduce() for all", get_num_gpus())
        if strategy == PARAMETER_SERVER:
            training["parameter_servers"] = 1
        outcome = run_experiment(Experiment(train_fn, called, training=training, **kept))
        return outcome.path, outcome.returned

    run.__name__ = run.__qualname__ = called
    run.__doc__ = (
        f"Trains with the strategy ``{strategy}``, on several processes unless it is ``{SINGLE}``: each calls "
        "``train_fn()``, or, of a parameter server's, the chief; what rank 0 returns counts. Arguments and result are "
        "those of :func:`launch`."
    )
    return run


allreduce = _distributed("allreduce", HOROVOD)
horovod = _distributed("horovod", HOROVOD)
mirrored = _distributed("mirrored", SINGLE)
collective_all_reduce = _distributed("collective_all_reduce", MULTI_WORKER_MIRRORED)
parameter_server = _distributed("parameter_server", PARAMETER_SERVER)


def _best(search: Experiment) -> Best:
    outcome = run_experiment(search)
    return outcome.path, outcome.params, outcome.returned


def _between(bounds: Mapping[str, Sequence[Any]]) -> dict[str, Uniform | IntUniform]:
    found: dict[str, Uniform | IntUniform] = {}
    for name, pair in bounds.items():
        if len(pair) != 2 or not all(is_number(value) for value in pair):
            raise BadInput(f"boundary_dict[{name!r}] is {pair!r}; expected two numbers, the lower and the upper bound")
        low, high = pair
        whole = isinstance(low, int) and isinstance(high, int)
        found[name] = IntUniform(low, high) if whole else Uniform(float(low), float(high))
    return found


def _kept(name: str, resources: Sequence[str] | None, description: str | None, spark: Any) -> dict[str, Any]:
    executors = None
    if spark is not None:
        given = spark.sparkContext.getConf().get("spark.executor.instances", None)
        executors = None if given is None else int(given)
    return {
        "name": name,
        "versioned_resources": tuple(resources or ()),
        "description": description,
        "executors": executors,
    }
