"""Searches for hyperparameters: trains with many, and publishes the best model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow_hops.core.contract.artifacts import BadInput
from airflow_hops.core.contract.search import SearchOptions, Space
from airflow_hops.core.contract.search.options import Direction
from airflow_hops.core.contract.training import HOROVOD, SINGLE
from airflow_hops.operators.train import RanksTrainOperator, TrainOperator

if TYPE_CHECKING:
    from airflow.sdk import Context


class SearchOperator(RanksTrainOperator, TrainOperator):
    """Trains with one set of hyperparameters after the other, several at once, and publishes the model of the best.

    Each trial is a training of its own, of ``np`` ranks. It is pruned by what it reports with
    ``context.report(step, metric=…)``, or ``context.fit`` after each epoch. The search survives its worker, and a retry
    goes on with it.

    Args:
        train: ``module:function`` beside the DAG file, called with a
            :class:`~airflow_hops.ml.training.context.TrainContext`, and with the trial's parameters by name, if it has
            such arguments; they are in ``context.params``, too. It returns a model, as for
            :class:`~airflow_hops.operators.train.TrainOperator`, or its metrics: a number, or a dict of them, in which
            case the task returns the best trial's parameters and metrics. (templated)
        space: Parameters by name: :class:`~airflow_hops.core.contract.search.space.Uniform`,
            :class:`~airflow_hops.core.contract.search.space.LogUniform`,
            :class:`~airflow_hops.core.contract.search.space.IntUniform`, a list of choices, or a constant. For
            parameters that depend on others, ``module:function``: it is called with an ``optuna.Trial``, and returns
            them.
        metric: What is optimized: a metric that trials report (``eval_auc``; the last value counts), or several, whose
            Pareto front is in the study's record.
        direction: ``minimize`` or ``maximize``; for several metrics a list.
        choose: The metric by which the winner of several is chosen; the first one by default.
        trials: How many trials are made; None for all points of a grid.
        parallel: How many of them at once. Cores are divided among them, GPUs leased, slots of hosts divided.
        sampler: What proposes parameters: ``tpe``, ``random``, ``grid``, ``cmaes`` or ``differential_evolution``.
        pruner: What ends trials early that are worse than others: ``none``, ``median``, ``asha`` or ``hyperband``.
        timeout: Seconds after which no trial begins any more.
        max_failures: Failed trials above which the task fails; None for a third of the trials, at least 3.
        study: Name of a study that the task's runs share: each goes on with it, for ``trials`` more. By default each
            DAG run has a study of its own.
        refit: Whether the winner is trained anew; else the best trial's own model is published.
        refit_np: Number of ranks of that training; by default ``np``.
        np: Number of ranks of a trial.
        strategy: How a trial's ranks work together: ``single``, of one process, the default with ``np=1``; ``horovod``,
            the default with more; or ``torch``.
        cache: As for every operator. Where it is not used, trials that were run before are run again, too.
        kwargs: Arguments of :class:`~airflow_hops.operators.train.RanksTrainOperator` and
            :class:`~airflow_hops.operators.train.TrainOperator`. ``params`` are constants of all trials.

    Raises:
        BadInput: an argument is not of these.
    """

    entry = "airflow_hops.ml.stages.search:run"

    def __init__(
        self,
        *,
        space: Space | str,
        metric: str | Sequence[str],
        direction: Direction | Sequence[Direction],
        choose: str | None = None,
        trials: int | None = 20,
        parallel: int = 1,
        sampler: str = "tpe",
        pruner: str = "none",
        timeout: float | None = None,
        max_failures: int | None = None,
        study: str | None = None,
        refit: bool = False,
        refit_np: int | None = None,
        np: int = 1,
        strategy: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(np=np, **kwargs)
        strategy = strategy or (SINGLE if np == 1 else HOROVOD)
        self.store_arguments(locals())
        if strategy == SINGLE and refit_np not in (None, 1):
            raise BadInput(
                f"refit_np is {refit_np}, but strategy 'single' trains in one process; give strategy='horovod' or "
                "strategy='torch', for which a trial may have one rank, too"
            )
        self.search = SearchOptions.of(
            self,
            training={},
            metrics=[metric] if isinstance(metric, str) else list(metric),
            directions=[direction] if isinstance(direction, str) else list(direction),
            timeout_s=timeout,
            reuse=SearchOptions.reuse,
        ).to_dict()

    def step_params(self, context: Context) -> dict[str, Any]:
        """Keyword arguments of :func:`airflow_hops.ml.stages.search.run`."""
        return {**self.search, "training": self.training(context), "reuse": super()._cache_enabled()}

    def _cache_enabled(self) -> bool:
        """Not where runs share a study, to which each adds trials, nor where no key knows what data the code reads."""
        knows_data = self.cache is True or any(self.step_inputs().values())
        return knows_data and self.search["study"] is None and super()._cache_enabled()
