"""Experiments: one call of a function, many with different hyperparameters, or one on many processes.

Each function accepts a ``SparkSession`` as its first argument; its number of executors is then the number of processes
that run at once, on this machine. The first item of each result is the experiment's folder.
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, TypeVar

from airflow_hops.core.errors import BadInput, InvalidArgument
from airflow_hops.core.training.options import HOROVOD, MULTI_WORKER_MIRRORED, PARAMETER_SERVER, SINGLE
from airflow_hops.extensions.experiments.core.search.space import IntUniform, Uniform, is_number
from airflow_hops.extensions.experiments.hops import absent
from airflow_hops.extensions.experiments.hops.util import lists_of
from airflow_hops.extensions.experiments.ml import Experiment, run_experiment
from airflow_hops.extensions.experiments.ml.experiment import Best
from airflow_hops.ml.training.devices import get_num_gpus
from airflow_hops.ml.training.gang import LocalRanks

__getattr__ = absent.calls_of("experiment")

log = logging.getLogger(__name__)

Found = tuple[str, Mapping[str, Any]]
"""The experiment's folder in the store, and the function's results by name (a single number is named ``metric``)."""

_OTHER_NAMES = {"map_fun": "train_fn", "objective_function": "train_fn", "grid_dict": "args_dict"}
_Function = TypeVar("_Function", bound=Callable[..., Any])


Direction = SimpleNamespace(MAX="max", MIN="min")
"""The directions of a search."""


def _as_in_hopsworks(function: _Function) -> _Function:
    """Accepts a ``SparkSession`` as first argument, and arguments under each name that hops-util-py had for them."""

    @functools.wraps(function)
    def call(*args: object, **kwargs: object) -> Any:
        kwargs = {_OTHER_NAMES.get(name, name): value for name, value in kwargs.items()}
        if args and (args[0] is None or hasattr(args[0], "sparkContext")):
            args, kwargs = args[1:], {**kwargs, "spark": args[0]}
        return function(*args, **kwargs)

    return call  # type: ignore[return-value]


@_as_in_hopsworks
def launch(
    train_fn: Callable[..., Any],
    args_dict: Mapping[str, Sequence[object]] | None = None,
    name: str = "no-name",
    local_logdir: bool = False,
    versioned_resources: Sequence[str] | None = None,
    description: str | None = None,
    *,
    metric_key: str | None = None,
    spark: object = None,
) -> Found:
    """Calls a function once, or for each combination of arguments, several at once.

    Args:
        train_fn: The function.
        args_dict: Lists of equal length: the first call gets the first value of each, and so on;
            :func:`airflow_hops.extensions.experiments.hops.util.grid_params` returns all combinations of values.
        name: Name of the experiment.
        local_logdir: Ignored, for compatibility: the log folder is always local, and copied to the store.
        versioned_resources: Files to save with the experiment.
        description: Description of the experiment.
        metric_key: Key of the experiment's metric, if the function returns a dict.
        spark: A ``SparkSession``.

    Raises:
        BadInput: the lists differ in length, or the function does not take the arguments.
        HopsError: a call failed; running calls are ended.
    """
    lists = lists_of(args_dict or {}, "args_dict")
    lengths = {key: len(values) for key, values in lists.items()}
    if len(set(lengths.values())) > 1 or 0 in lengths.values():
        raise BadInput(f"args_dict has lists of {lengths} values; expected lists of equal length, 1 or more")
    rows = [dict(zip(lengths, values, strict=True)) for values in zip(*lists.values(), strict=True)]
    options = _common_options(name, versioned_resources, description, spark)
    path, _, returned = run_experiment(
        Experiment(train_fn, "launch", rows=rows or [{}], metric=metric_key or "metric", **options)
    )
    return path, returned


@_as_in_hopsworks
def grid_search(  # noqa: D417  # the others are those of launch
    train_fn: Callable[..., object],
    args_dict: Mapping[str, Sequence[object]],
    direction: str = Direction.MAX,
    name: str = "no-name",
    local_logdir: bool = False,
    versioned_resources: Sequence[str] | None = None,
    description: str | None = None,
    optimization_key: str = "metric",
    *,
    spark: object = None,
) -> Best:
    """Calls a function with every combination of values.

    Args:
        train_fn: The function; it returns a number, or a dict of numbers.
        args_dict: A list of values for each argument.
        direction: ``max`` or ``min``.
        optimization_key: Key of the number to optimize, if the function returns a dict.

    Other arguments are those of :func:`launch`.

    Raises:
        BadInput: an argument is invalid, or the function does not return a number.
        HopsError: too many calls failed.
    """
    return _search(
        train_fn,
        "grid_search",
        space=lists_of(args_dict, "args_dict"),
        metric=optimization_key,
        direction=direction,
        sampler="grid",
        **_common_options(name, versioned_resources, description, spark),
    )


@_as_in_hopsworks
def random_search(  # noqa: D417  # the others are those of launch
    train_fn: Callable[..., object],
    boundary_dict: Mapping[str, Sequence[object]],
    direction: str = Direction.MAX,
    samples: int = 10,
    name: str = "no-name",
    local_logdir: bool = False,
    versioned_resources: Sequence[str] | None = None,
    description: str | None = None,
    optimization_key: str = "metric",
    *,
    spark: object = None,
) -> Best:
    """Calls a function with random values between bounds.

    Args:
        train_fn: The function; it returns a number, or a dict of numbers.
        boundary_dict: Lower and upper bound of each argument, both inclusive; integer bounds draw integers.
        direction: ``max`` or ``min``.
        samples: Number of calls.
        optimization_key: Key of the number to optimize, if the function returns a dict.

    Other arguments are those of :func:`launch`.

    Raises:
        BadInput: an argument is invalid, or the function does not return a number.
        HopsError: too many calls failed.
    """
    _check_number("samples", samples, 1, whole=True)
    return _search(
        train_fn,
        "random_search",
        space=_between(boundary_dict),
        metric=optimization_key,
        direction=direction,
        trials=samples,
        **_common_options(name, versioned_resources, description, spark),
    )


@_as_in_hopsworks
def differential_evolution(  # noqa: D417  # the others are those of launch
    train_fn: Callable[..., object],
    boundary_dict: Mapping[str, Sequence[object]],
    direction: str = Direction.MAX,
    generations: int = 4,
    population: int = 6,
    mutation: float = 0.5,
    crossover: float = 0.7,
    cleanup_generations: bool = False,
    name: str = "no-name",
    local_logdir: bool = False,
    versioned_resources: Sequence[str] | None = None,
    description: str | None = None,
    optimization_key: str = "metric",
    *,
    spark: object = None,
) -> Best:
    """Searches by differential evolution (Storn and Price 1997), but without rounds in which calls wait for each other.

    Args:
        train_fn: The function; it returns a number, or a dict of numbers.
        boundary_dict: Lower and upper bound of each argument, both inclusive.
        direction: ``max`` or ``min``.
        generations: Number of generations, including the random first one.
        population: Number of members, 4 or more.
        mutation: Factor of the difference of two members, 0 to 2.
        crossover: Share of the arguments that come from the mutant, 0 to 1.
        cleanup_generations: Ignored, for compatibility: all calls are saved.
        optimization_key: Key of the number to optimize, if the function returns a dict.

    Other arguments are those of :func:`launch`.

    Raises:
        BadInput: an argument is invalid, or the function does not return a number.
        HopsError: too many calls failed.
    """
    _check_number("population", population, 4, whole=True)
    _check_number("generations", generations, 1, whole=True)
    _check_number("mutation", mutation, 0, 2)
    _check_number("crossover", crossover, 0, 1)

    def sampler(seed: int) -> object:
        from airflow_hops.extensions.experiments.ml.search.differential_evolution import DifferentialEvolutionSampler

        return DifferentialEvolutionSampler(seed, population=population, weight=mutation, crossover=crossover)

    return _search(
        train_fn,
        "differential_evolution",
        space=_between(boundary_dict),
        metric=optimization_key,
        direction=direction,
        sampler="differential_evolution",
        make_sampler=sampler,
        trials=generations * population,
        **_common_options(name, versioned_resources, description, spark),
    )


def _distributed(called: str, strategy: str) -> Callable[..., Found]:
    @_as_in_hopsworks
    def run(
        train_fn: Callable[..., object],
        name: str = "no-name",
        local_logdir: bool = False,
        versioned_resources: Sequence[str] | None = None,
        description: str | None = None,
        evaluator: bool = False,
        metric_key: str | None = None,
        *,
        spark: object = None,
    ) -> Found:
        if evaluator:
            raise BadInput(f"{called}: evaluator is {evaluator!r}; expected False: evaluate at the end of train_fn")
        options = _common_options(name, versioned_resources, description, spark)
        training: dict[str, Any] = {"strategy": strategy, "np": 1}
        if strategy != SINGLE:
            training["np"] = options.pop("executors") or LocalRanks().slots
        elif get_num_gpus() > 1:
            log.warning("mirrored() trains on one GPU of the %d; use collective_all_reduce() for all", get_num_gpus())
        if strategy == PARAMETER_SERVER:
            training["parameter_servers"] = 1
        path, _, returned = run_experiment(
            Experiment(train_fn, called, training=training, metric=metric_key or "metric", **options)
        )
        return path, returned

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


def _search(*args: Any, **options: Any) -> Best:
    return run_experiment(Experiment(*args, **options))


def _between(bounds: Mapping[str, Sequence[object]]) -> dict[str, Uniform | IntUniform]:
    results: dict[str, Uniform | IntUniform] = {}
    for name, pair in lists_of(bounds, "boundary_dict").items():
        if len(pair) != 2 or not all(is_number(value) for value in pair):
            raise BadInput(f"boundary_dict[{name!r}] is {pair!r}; expected two numbers, the lower and the upper bound")
        low, high = pair
        whole = isinstance(low, int) and isinstance(high, int)
        results[name] = IntUniform(low, high) if whole else Uniform(float(low), float(high))
    return results


def _check_number(name: str, value: Any, least: float, most: float = math.inf, *, whole: bool = False) -> None:
    if not is_number(value) or not least <= value <= most or (whole and not isinstance(value, int)):
        expected = f"{'a whole' if whole else 'a'} number, {least} {'or more' if most == math.inf else f'to {most}'}"
        raise InvalidArgument(name, value, f"; expected {expected}")


def _common_options(name: str, resources: Sequence[str] | None, description: str | None, spark: Any) -> dict[str, Any]:
    for argument, text in {"name": name, "description": description}.items():
        if not isinstance(text, str) and (text is not None or argument == "name"):
            raise InvalidArgument(argument, text, "; expected a string")
    if isinstance(resources, str):
        raise BadInput(
            f"versioned_resources is {resources!r}; expected a list of paths; give a description by its name"
        )
    instances = spark and spark.sparkContext.getConf().get("spark.executor.instances", None)
    return {
        "name": name,
        "versioned_resources": tuple(resources or ()),
        "description": description,
        "executors": max(int(instances or 0), 0) or None,  # 0 if Spark allocates executors dynamically
    }
