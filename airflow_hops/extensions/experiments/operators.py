"""Operator that searches for hyperparameters and publishes the best model."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_hops.core.errors import BadInput
from airflow_hops.core.extensions import STRATEGIES, extensions
from airflow_hops.core.names import check_known
from airflow_hops.core.training.options import HOROVOD, SINGLE
from airflow_hops.core.training.rank_places import place_of
from airflow_hops.extensions.experiments.core.search import SearchOptions, Space
from airflow_hops.extensions.experiments.core.search.options import Direction, Pruner, Sampler
from airflow_hops.operators.training import RanksTrainOperator, TrainOperator
from airflow_hops.runner.arguments import Count, FunctionName, Positive, WholeNumber

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_hops.runner.runtime import RuntimeHook


class SearchOperator(RanksTrainOperator, TrainOperator):
    """Trains with many sets of hyperparameters, several at once, and publishes the best model.

    Each trial is a separate training with ``np`` ranks. The pruner uses the trial's reports, made with
    ``context.report(step, metric=…)`` or by ``context.fit`` after each epoch. The search survives its worker, and a
    retry continues it.

    Args:
        train: ``module:function`` beside the DAG file, called with a
            :class:`~airflow_hops.ml.training.context.TrainContext`, and with the trial's parameters by name, if it has
            such arguments; ``context.params`` has them, too. It returns a model, as for
            :class:`.TrainOperator`, or its metrics: a number, or a dict of them, in which
            case the task returns the best trial's parameters and metrics. (templated)
        space: Parameters by name: ``Uniform``, ``LogUniform``, ``IntUniform``
            (:mod:`airflow_hops.extensions.experiments.core.search.space`), a list or tuple of choices, or a constant.
            For parameters that depend on others, ``module:function``: called with an ``optuna.Trial``, it returns them.
        metric: Metric to optimize, reported by trials (``eval_auc``; the last value counts), or several; Optuna then
            shows their Pareto front.
        direction: ``minimize`` or ``maximize``; for several metrics a list.
        choose: With several metrics, the one that determines the winner; the first by default.
        trials: Number of trials; None for all points of a grid.
        parallel: Number of simultaneous trials. Cores and slots of hosts are divided among them, and GPUs are leased.
        sampler: Source of parameters: ``tpe``, ``random``, ``grid``, ``cmaes`` or ``differential_evolution``.
        pruner: Ends poor trials early: ``none``, ``median``, ``asha`` or ``hyperband``.
        timeout: Seconds after which no more trials begin, counted from the beginning of the first try.
        max_failures: Failed trials above which the task fails; None for a third of the trials, at least 3.
        study: Name of a study that the task's runs share: each run adds ``trials`` trials. By default each DAG run has
            its own study.
        refit: Whether to train the winner again; otherwise the best trial's model is published.
        refit_np: Number of ranks of that training; by default ``np``.
        np: Number of ranks of a trial.
        strategy: How a trial's ranks work together: ``single`` (one process, the default with ``np=1``), ``horovod``
            (the default with more), or a registered one such as ``torch``.
        cache: As for every operator. Without the cache, earlier trials are run again, too.
        kwargs: Arguments of :class:`~airflow_hops.operators.training.RanksTrainOperator` and
            :class:`.TrainOperator`. ``params`` are constants of all trials.

    Raises:
        BadInput: an argument is invalid.
    """

    entry = "airflow_hops.extensions.experiments.ml.search.stage:run"
    functions: ClassVar[Mapping[str, int]] = {"train": 1, "space": 1}
    template_fields: Sequence[str] = (*TrainOperator.template_fields, "hosts", "conf")

    def __init__(
        self,
        *,
        space: Space | FunctionName,
        metric: str | Sequence[str],
        direction: Direction | Sequence[Direction],
        choose: str | None = None,
        trials: Count | None = 20,
        parallel: Count = 1,
        sampler: Sampler = "tpe",
        pruner: Pruner = "none",
        timeout: Positive | None = None,
        max_failures: WholeNumber | None = None,
        study: str | None = None,
        refit: bool = False,
        refit_np: Count | None = None,
        np: Count = 1,
        strategy: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(np=np, **kwargs)
        strategy = strategy or ("single" if np == 1 else "horovod")
        self.space = space
        self.metric = metric
        self.direction = direction
        self.choose = choose
        self.trials = trials
        self.parallel = parallel
        self.sampler = sampler
        self.pruner = pruner
        self.timeout = timeout
        self.max_failures = max_failures
        self.study = study
        self.refit = refit
        self.refit_np = refit_np
        self.strategy = strategy
        self.check_arguments(SearchOperator)
        check_known("strategy", strategy, (SINGLE, HOROVOD, *extensions(STRATEGIES)))
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
        ).to_dict()

    def named_arguments(self) -> Collection[str] | None:
        """Returns the names of the parameters of trials; None if a function makes them."""
        return {*self.hyperparameters, *self.space} if isinstance(self.space, Mapping) else None

    def _where(self, hook: RuntimeHook) -> dict[str, Any] | None:
        where = super()._where(hook)
        if where is not None and place_of(where).member:
            raise BadInput(
                f"connection {self.hops_conn_id!r}: field 'ranks_conn_id' is {hook.settings.ranks_conn_id!r}, but "
                f"ranks of the place {where['kind']!r} are made with the step, for one training; give the search a "
                "hops_conn_id without it, and the step the resources of all parallel trials"
            )
        return where

    def step_params(self, context: Context) -> dict[str, Any]:
        """Returns the keyword arguments of :func:`airflow_hops.extensions.experiments.ml.search.stage.run`."""
        return {**self.search, "training": self.training(context), "reuse": super()._cache_enabled()}

    def _cache_enabled(self) -> bool:
        """Disables the cache if runs share a study, or if the inputs do not show which data the code reads."""
        knows_data = self.cache is True or any(self.step_inputs().values())
        return knows_data and self.search["study"] is None and super()._cache_enabled()
