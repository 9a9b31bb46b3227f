"""Optuna's samplers and pruners by the names of the options."""

from __future__ import annotations

import numpy
import optuna

from airflow_hops.extensions.experiments.core.search import SearchOptions
from airflow_hops.extensions.experiments.ml.search.differential_evolution import DifferentialEvolutionSampler


def resumed_seed(options: SearchOptions, trials: int) -> int:
    """Returns the sampler's seed; a study that resumes after some trials must not repeat its random numbers."""
    return int(numpy.random.SeedSequence([options.seed, trials]).generate_state(1)[0]) if trials else options.seed


def sampler_of(options: SearchOptions, seed: int) -> optuna.samplers.BaseSampler:
    """Returns the sampler of a search; a grid's points are not sampled."""
    match options.sampler:
        case "cmaes":
            return optuna.samplers.CmaEsSampler(seed=seed, warn_independent_sampling=False)
        case "differential_evolution":
            return DifferentialEvolutionSampler(seed)
        case "tpe":
            return optuna.samplers.TPESampler(seed=seed, constant_liar=options.parallel > 1)
    return optuna.samplers.RandomSampler(seed=seed)


def pruner_of(options: SearchOptions) -> optuna.pruners.BasePruner:
    """Returns the pruner of a search."""
    match options.pruner:
        case "median":
            return optuna.pruners.MedianPruner()
        case "asha":
            return optuna.pruners.SuccessiveHalvingPruner()
        case "hyperband":
            return optuna.pruners.HyperbandPruner()
    return optuna.pruners.NopPruner()
