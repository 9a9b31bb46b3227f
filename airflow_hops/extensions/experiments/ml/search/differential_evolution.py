"""Differential evolution as a sampler for Optuna.

R. Storn and K. Price, Differential Evolution - A Simple and Efficient Heuristic for Global Optimization over Continuous
Spaces, Journal of Global Optimization 11 (1997) 341-359; the scheme DE/rand/1/bin.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.search_space import IntersectionSearchSpace
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState


class DifferentialEvolutionSampler(BaseSampler):
    """Crosses a member of a population with a mutant of three others; the better of old and new becomes the member.

    Without generations, no trial waits for another: trial ``n`` belongs to member ``n`` modulo the population,
    whose vector is that of its best trial so far. The first trials are random.

    Args:
        seed: Seed of the random numbers.
        population: Number of members, 4 or more.
        weight: Factor of the difference of two members, *F* in the paper.
        crossover: Share of the parameters taken from the mutant, *CR* in the paper.
    """

    def __init__(self, seed: int, *, population: int = 15, weight: float = 0.6, crossover: float = 0.9) -> None:
        self._random = numpy.random.default_rng(seed)
        self._independent = RandomSampler(seed=seed)
        self._space = IntersectionSearchSpace()
        self._population, self._weight, self._crossover = population, weight, crossover

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """Returns the varying parameters that all trials have."""
        return {name: each for name, each in self._space.calculate(study).items() if not each.single()}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, object]:
        """Returns the trial's parameters; none until the population is complete."""
        members = self._members(study, search_space)
        target = trial.number % self._population
        others = [member for number, member in members.items() if number != target]
        if not search_space or trial.number < self._population or target not in members or len(others) < 3:
            return {}
        first, second, third = (others[n] for n in self._random.choice(len(others), 3, replace=False))
        mutant = first + self._weight * (second - third)
        mutant = numpy.where((mutant < 0) | (mutant > 1), self._random.random(len(mutant)), mutant)
        from_mutant = self._random.random(len(mutant)) < self._crossover
        from_mutant[self._random.integers(len(mutant))] = True
        crossed = numpy.where(from_mutant, mutant, members[target])
        return {name: _value(each, x) for (name, each), x in zip(search_space.items(), crossed, strict=True)}

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> object:
        """Returns a random value."""
        return self._independent.sample_independent(study, trial, param_name, param_distribution)

    def _members(self, study: Study, space: Mapping[str, BaseDistribution]) -> dict[int, Any]:
        """Returns the population's vectors in the unit cube, by member number."""
        sign = -1.0 if study.direction == StudyDirection.MAXIMIZE else 1.0
        best: dict[int, FrozenTrial] = {}
        for trial in study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)):
            member = trial.number % self._population
            if member not in best or sign * (trial.value or 0.0) <= sign * (best[member].value or 0.0):
                best[member] = trial
        return {
            member: numpy.array([_unit(each, trial.params[name]) for name, each in space.items()])
            for member, trial in best.items()
        }


def _unit(distribution: BaseDistribution, value: object) -> float:
    """Returns a value's position in its range, 0 to 1."""
    if isinstance(distribution, CategoricalDistribution):
        return float(distribution.choices.index(value) + 0.5) / len(distribution.choices)
    assert isinstance(distribution, FloatDistribution | IntDistribution)
    low, high = distribution.low, distribution.high
    if distribution.log:
        return math.log(value / low) / math.log(high / low)
    return float((value - low) / (high - low))


def _value(distribution: BaseDistribution, unit: float) -> object:
    """Inverts :func:`_unit`; returns the nearest allowed value."""
    if isinstance(distribution, CategoricalDistribution):
        return distribution.choices[min(int(unit * len(distribution.choices)), len(distribution.choices) - 1)]
    assert isinstance(distribution, FloatDistribution | IntDistribution)
    low, high, step = distribution.low, distribution.high, distribution.step
    value = low * (high / low) ** unit if distribution.log else low + unit * (high - low)
    if step is not None and not (distribution.log and isinstance(distribution, FloatDistribution)):
        value = low + round((value - low) / step) * step
    value = min(max(value, low), high)
    return int(value) if isinstance(distribution, IntDistribution) else float(value)
