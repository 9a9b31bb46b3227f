"""Optuna's part of a search: proposes parameters, and decides on pruning.

Its study lives in memory and is rebuilt from the record of trials: nothing is stored in a database or pickled.
"""

from __future__ import annotations

import json
import logging
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy
import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
    distribution_to_json,
    json_to_distribution,
)
from optuna.exceptions import ExperimentalWarning
from optuna.trial import FrozenTrial, Trial, TrialState, create_trial

from airflow_hops.core.errors import BadInput
from airflow_hops.core.steps.protocol import check_json
from airflow_hops.extensions.experiments.core.search import Choice, SearchOptions, TrialRecord
from airflow_hops.extensions.experiments.core.search.space import Dimension, IntUniform, LogUniform
from airflow_hops.extensions.experiments.ml.search.differential_evolution import DifferentialEvolutionSampler
from airflow_hops.ml.step.context import resolve

# Optuna's study is derived state: the record of trials is the only truth, and a new process adds all of them to a new
# study. Running trials are added, too, and continue under their numbers (take_up). The sampler's seed depends on the
# number of trials, so that a resumed search does not propose the same parameters again.

log = logging.getLogger(__name__)

_STATES = {"running": TrialState.RUNNING, "complete": TrialState.COMPLETE, "pruned": TrialState.PRUNED}
_RUNG = "completed_rung"
_IMPORTANCE_TRIALS = 1000


@dataclass(frozen=True)
class ProposedTrial:
    """Trial to run.

    Attributes:
        distributions: Optuna's, as JSON, if a function defines the space.
    """

    number: int
    params: dict[str, Any]
    distributions: dict[str, str] = field(default_factory=dict)


class OptunaStudy:
    """Study of Optuna, in memory.

    Args:
        options: Options of the search.
        trials: All trials so far, by number, for Optuna.
        done: Parameters that a grid need not repeat.
        make_sampler: Creates a sampler from a seed, instead of the one in the options.
        points: Parameters of a grid's trials, instead of all combinations of the space's values.
    """

    def __init__(
        self,
        options: SearchOptions,
        trials: Sequence[TrialRecord],
        done: Sequence[Mapping[str, object]] = (),
        make_sampler: Callable[[int], optuna.samplers.BaseSampler] | None = None,
        points: Sequence[Mapping[str, object]] | None = None,
    ) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._options, self._dimensions = options, options.dimensions()
        self._function: Callable[[Trial], object] | None = None
        if isinstance(options.space, str):
            self._function = resolve(options.space)
        self._distributions = {} if points is not None else distributions_of(self._dimensions)
        known = {json.dumps(dict(params), sort_keys=True) for params in done}
        grid = options.points() if points is None and options.sampler == "grid" else iter(points or ())
        self._grid = (point for point in grid if json.dumps(point, sort_keys=True) not in known)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            self._study = optuna.create_study(
                sampler=(make_sampler or partial(_sampler, options))(_seed(options, trials)),
                pruner=_pruner(options.pruner),
                directions=list(options.directions),
            )
        self._study.add_trials([frozen_trial(trial, self._dimensions, self._distributions) for trial in trials])
        self._running: dict[int, Trial] = {}

    def ask(self) -> ProposedTrial | None:
        """Returns the next trial, or None at the end of a grid.

        Raises:
            BadInput: the function of the space returned no parameters, or suggests choices that Python finds equal.
        """
        point: Mapping[str, object] | None = None
        if self._options.sampler == "grid":
            point = next(self._grid, None)
            if point is None:
                return None
            self._study.enqueue_trial(
                {name: _encoded(self._dimensions, name, point[name]) for name in self._distributions}
            )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # samplers warn if they fall back to random values
            trial = self._study.ask(self._distributions)
            if point is not None:
                params = dict(point)
            else:
                params = self._called(trial) if self._function is not None else self._decoded(trial.params)
        self._running[trial.number] = trial
        report = trial.distributions if self._function is not None else {}
        return ProposedTrial(trial.number, params, {name: distribution_to_json(each) for name, each in report.items()})

    def take_up(self, number: int) -> None:
        """Continues a running trial of an earlier try, with its number and parameters."""
        self._running[number] = Trial(self._study, self._study.get_trials(deepcopy=False)[number]._trial_id)

    def report(self, number: int, step: int, value: float) -> bool:
        """Adds an intermediate value of a running trial; returns whether to prune it."""
        if len(self._options.metrics) > 1:
            return False
        trial = self._running[number]
        trial.report(value, step)
        return bool(trial.should_prune())

    def tell(self, number: int, values: Sequence[float] | None, *, pruned: bool = False) -> dict[str, object]:
        """Ends a running trial; returns the pruner's state for it.

        ``values`` are those of a complete trial, None otherwise.
        """
        trial = self._running.pop(number)
        if values is not None:
            self._study.tell(trial, list(values))
        else:
            self._study.tell(trial, state=TrialState.PRUNED if pruned else TrialState.FAIL)
        return {name: value for name, value in trial._get_latest_trial().system_attrs.items() if _RUNG in name}

    def importance(self) -> dict[str, float]:
        """Returns each parameter's share of the variance of the first metric: fANOVA (F. Hutter et al., ICML 2014).

        Parameters whose bounds depend on others are left out. It never raises, so that it cannot fail a search.
        """
        trials = self._study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))[-_IMPORTANCE_TRIALS:]
        shared = set.intersection(*(set(trial.params) for trial in trials)) if trials else set()
        fixed = [n for n in sorted(shared) if all(t.distributions[n] == trials[0].distributions[n] for t in trials)]
        varying = [n for n in fixed if any(t.params[n] != trials[0].params[n] for t in trials)]
        if len(trials) < 4 or not varying or len({(trial.values or [0.0])[0] for trial in trials}) < 2:
            return {}
        study = optuna.create_study(directions=list(self._options.directions))
        study.add_trials(trials)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ExperimentalWarning)
                shares = optuna.importance.get_param_importances(
                    study,
                    evaluator=optuna.importance.FanovaImportanceEvaluator(seed=0),
                    params=varying,
                    target=lambda trial: trial.values[0],
                )
        except Exception as error:
            log.warning("the importance of parameters cannot be computed: %s", error)
            return {}
        return {name: round(float(share), 4) for name, share in shares.items() if math.isfinite(share)}

    def _called(self, trial: Trial) -> dict[str, object]:
        assert self._function is not None
        returned = self._function(trial)
        params = dict(trial.params) if returned is None else returned
        if not isinstance(params, Mapping) or not params:
            raise BadInput(f"space function {self._options.space!r} returned {returned!r}; expected parameters by name")
        check_json(dict(params), f"what space function {self._options.space!r} returned")
        for name, each in trial.distributions.items():
            if isinstance(each, CategoricalDistribution) and len(set(each.choices)) < len(each.choices):
                raise BadInput(
                    f"space function {self._options.space!r} suggests {name!r} of {list(each.choices)}, some of which "
                    "are equal in Python, so Optuna would treat them as one; give strings, and convert the value"
                )
        return dict(params)

    def _decoded(self, encoded: Mapping[str, Any]) -> dict[str, Any]:
        """Returns all parameters for the user's code: those chosen by Optuna, and constants."""
        params = {}
        for name, each in (self._dimensions or {}).items():
            if name not in encoded:
                assert isinstance(each, Choice)
                params[name] = each.choices[0]
            else:
                params[name] = json.loads(encoded[name]) if isinstance(each, Choice) else encoded[name]
        return params


def frozen_trial(
    trial: TrialRecord, dimensions: Mapping[str, Dimension] | None, distributions: Mapping[str, BaseDistribution]
) -> FrozenTrial:
    """Converts a trial to Optuna's class.

    Args:
        trial: The trial.
        dimensions: Dimensions of the space; None if a function defines it, which records distributions by trial.
        distributions: Distributions of the dimensions that Optuna chooses.
    """
    if dimensions is None:
        distributions = {name: json_to_distribution(text) for name, text in trial.distributions.items()}
    params = {name: _encoded(dimensions, name, trial.params[name]) for name in distributions if name in trial.params}
    state = _STATES.get(trial.state, TrialState.FAIL)
    return create_trial(
        state=state,
        values=list(trial.values) if state == TrialState.COMPLETE else None,
        params=params,
        distributions={name: distributions[name] for name in params},
        intermediate_values={int(step): value for step, value in trial.intermediate},
        system_attrs=dict(trial.pruner_state),
    )


def distributions_of(dimensions: Mapping[str, Dimension] | None) -> dict[str, BaseDistribution]:
    """Returns Optuna's distributions of a space, without constants."""
    return {
        name: _distribution(each)
        for name, each in (dimensions or {}).items()
        if not isinstance(each, Choice) or len(each.choices) > 1
    }


def _encoded(dimensions: Mapping[str, Dimension] | None, name: str, value: object) -> object:
    """Returns a value for Optuna: of a choice, JSON.

    It accepts neither lists nor objects, and treats choices that are equal in Python, such as 1, 1.0 and True, as one.
    """
    return json.dumps(value) if isinstance((dimensions or {}).get(name), Choice) else value


def _distribution(dimension: Dimension) -> BaseDistribution:
    match dimension:
        case Choice(choices):
            return CategoricalDistribution([json.dumps(value) for value in choices])
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


def _seed(options: SearchOptions, trials: Sequence[TrialRecord]) -> int:
    """Returns the sampler's seed; a resumed study must not repeat its random numbers."""
    if not trials:
        return options.seed
    return int(numpy.random.SeedSequence([options.seed, len(trials)]).generate_state(1)[0])


def _sampler(options: SearchOptions, seed: int) -> optuna.samplers.BaseSampler:
    match options.sampler:
        case "cmaes":
            return optuna.samplers.CmaEsSampler(seed=seed, warn_independent_sampling=False)
        case "differential_evolution":
            return DifferentialEvolutionSampler(seed)
        case "tpe":
            return optuna.samplers.TPESampler(seed=seed, constant_liar=options.parallel > 1)
    return optuna.samplers.RandomSampler(seed=seed)


def _pruner(name: str) -> optuna.pruners.BasePruner:
    match name:
        case "median":
            return optuna.pruners.MedianPruner()
        case "asha":
            return optuna.pruners.SuccessiveHalvingPruner()
        case "hyperband":
            return optuna.pruners.HyperbandPruner()
    return optuna.pruners.NopPruner()
