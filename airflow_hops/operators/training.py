"""Operators that train a model: in one process with any framework, or on several ranks of Horovod."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from airflow_hops.core.errors import BadInput, InvalidArgument
from airflow_hops.core.lineage import COMPARED
from airflow_hops.core.models.continued_models import champion_of_run
from airflow_hops.core.training.options import HOROVOD, PARAMETER_SERVER, SINGLE, TrainingOptions
from airflow_hops.core.training.rank_places import place_of
from airflow_hops.operators.base import HopsOperator, own_params, producer_of
from airflow_hops.operators.links import LINEAGE_LINK, RUNS_LINK, TENSORBOARD_LINK
from airflow_hops.runner.arguments import (
    Count,
    FunctionName,
    ModelName,
    NotNegative,
    Positive,
    WholeNumber,
    is_late,
    rendered_mapping,
)
from airflow_hops.runner.launchers.base import Launcher
from airflow_hops.runner.ranks import where_ranks_run
from airflow_hops.runner.resuming import DurableLauncher
from airflow_hops.runner.runtime import RuntimeHook

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_hops.core.steps.protocol import StepSpec


class DurableOperator(HopsOperator):
    """Base of operators whose step is a job: the job survives its worker, and a retry follows it to its end.

    Args:
        durable: Whether the step is a job. If not, or if Airflow has no task state store, the step ends with its
            worker. Steps of some launchers outlive their worker in any case.
        kwargs: Arguments of :class:`airflow_hops.operators.base.HopsOperator`.
    """

    def __init__(self, *, durable: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.durable = durable

    def launcher_of_try(self, hook: RuntimeHook, context: Context) -> Launcher | None:
        """Returns the launcher of this try, which follows the job of an earlier one."""
        store, launcher = context.get("task_state_store"), self.chosen_launcher(hook)
        if not self.durable or store is None or (launcher is not None and launcher.reattaches):
            return launcher
        return DurableLauncher(launcher or hook.local_launcher(), store, lambda: hook.killed)


class TrainingOperator(DurableOperator):
    """Arguments of all operators that train.

    Args:
        train: ``module:function`` beside the DAG file, called with a
            :class:`~airflow_hops.ml.training.context.TrainContext`. (templated)
        examples: The artifact to train on; None if the code reads its own data. (templated)
        params: Hyperparameters, JSON values, available as ``context.params``. They are Airflow params of the task: a
            DAG run's ``conf`` overrides their values.
        env: Environment variables of the training. (templated)
        seed: Seed of the weights and of the order of rows.
        stall_timeout_s: Seconds without a sign of life after which the training is ended, not counting those in which
            it waits for a core that others use.
        durable: Whether the training survives the death of its worker.
        grace_s: Seconds from SIGTERM to SIGKILL where it runs: 3.5 if Airflow ends the task, more if a pod or a spot
            machine leaves more. The log warns if a checkpoint takes longer.
        continue_from: Name of a served model: ``context.champion`` is the one that serves when the DAG run first asks,
            and its tries begin with the same. None for a training from scratch. (templated)
        kwargs: Arguments of :class:`airflow_hops.operators.base.HopsOperator`.
    """

    entry = "airflow_hops.ml.training.stage:run"
    functions: ClassVar[Mapping[str, int]] = {"train": 1}
    output_kind = "model"
    input_arguments: ClassVar[Sequence[str]] = ("examples",)
    template_fields: Sequence[str] = (*DurableOperator.template_fields, "examples", "train", "env", "continue_from")
    operator_extra_links = (RUNS_LINK, TENSORBOARD_LINK, LINEAGE_LINK)

    def __init__(
        self,
        *,
        train: FunctionName | None = None,
        examples: Any = None,
        params: Mapping[str, Any] | None = None,
        env: Mapping[str, str | float] | None = None,
        seed: WholeNumber = 0,
        stall_timeout_s: Positive = 300.0,
        durable: bool = True,
        grace_s: Positive = 3.5,
        continue_from: ModelName | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(params=dict(params or {}), durable=durable, **kwargs)
        self.train = train
        self.examples = examples
        self.seed = seed
        self.stall_timeout_s = stall_timeout_s
        self.grace_s = grace_s
        self.continue_from = continue_from
        self.champion_version: int | None = None
        self.hyperparameters = own_params(params or {})
        self.check_arguments(TrainingOperator, params=params, env=env)
        self.env = env if is_late(env) else dict(env or {})

    def named_arguments(self) -> Collection[str] | None:
        """Returns the names of the hyperparameters."""
        return self.hyperparameters

    def _check_program(self, **programs: Any) -> None:
        """Raises BadInput unless exactly one program is named; a decorated function is one, too."""
        named = [name for name, program in programs.items() if program is not None]
        if len(named) != 1 and not hasattr(self, "python_callable"):
            raise BadInput(
                f"{type(self).__name__} {self.task_id!r}: expected {' or '.join(programs)}, found "
                f"{'both' if named else 'none'}"
            )

    def pre_execute(self, context: Context) -> None:
        """Pushes the task's links at the start; Airflow adds them only when the task has ended."""
        super().pre_execute(context)
        for link in (RUNS_LINK, TENSORBOARD_LINK):
            context["ti"].xcom_push(key=link.xcom_key, value=link.get_link(self, ti_key=context["ti"]))

    def build_spec(self, hook: RuntimeHook, context: Context) -> StepSpec:
        """Returns the step's spec, whose input ``champion`` is the model to continue from, if there is one."""
        if not self.continue_from:
            return super().build_spec(hook, context)
        champion = champion_of_run(hook.store, producer_of(context), self.continue_from)
        if champion is None:
            self.log.info(
                "No version of model %r served when the run began: it trains from scratch", self.continue_from
            )
        self.champion_version = None if champion is None else champion[1]
        spec = super().build_spec(hook, context)
        if COMPARED in spec.inputs:
            raise BadInput(f"the function has an argument {COMPARED!r}; rename it, as continue_from has this input")
        return spec if champion is None else replace(spec, inputs={**spec.inputs, COMPARED: (champion[0],)})

    def step_params(self, context: Context) -> dict[str, Any]:
        """Returns the keyword arguments of :func:`airflow_hops.ml.training.stage.run`."""
        return self.training(context)

    def training(self, context: Context, **options: Any) -> dict[str, Any]:
        """Returns the training options as JSON; ``options`` override attributes of the same names."""
        params = {name: context["params"][name] for name in self.hyperparameters}
        env = {name: str(value) for name, value in rendered_mapping("env", self.env).items()}
        return TrainingOptions.of(self, **{"params": params, "env": env, **options}).to_dict()


class TrainOperator(TrainingOperator):
    """Runs a training function of any framework in one process, and publishes the model.

    The function returns a scikit-learn estimator or Pipeline, an XGBoost or LightGBM model, or a ``torch.nn.Module``,
    exported as an ONNX graph, or a ``keras.Model``, exported as a SavedModel. The exported model is compared with the
    trained one on held-out rows.

    Args:
        train: ``module:function`` beside the DAG file, called with a
            :class:`~airflow_hops.ml.training.context.TrainContext`. (templated)
        examples: The ``transformed_examples`` artifact, whose transform graph then runs before the model in training
            and serving; or the ``examples`` artifact, if the estimator takes raw features. (templated)
        statistics: The ``statistics`` artifact of raw examples, which monitors compare requests with; transformed
            examples name their own. (templated)
        schema: Their ``schema`` artifact. (templated)
        tolerance: How much the exported model may differ from the trained one: in a probability, or in a regression
            in standard deviations of the predictions.
        fall_back: Whether to store a scikit-learn estimator with skops if its ONNX graph cannot be exported or loaded,
            or differs.
        stall_timeout_s: Seconds without a sign of life (a ``context.report``, a printed line, reading a split) after
            which the training is ended.
        kwargs: Arguments of :class:`TrainingOperator`.
    """

    input_arguments: ClassVar[Sequence[str]] = ("examples", "statistics", "schema")
    template_fields: Sequence[str] = (*TrainingOperator.template_fields, "statistics", "schema")
    np: int | tuple[int, int] = 1
    strategy = SINGLE

    def __init__(
        self,
        *,
        statistics: Any = None,
        schema: Any = None,
        tolerance: NotNegative = 1e-3,
        fall_back: bool = False,
        stall_timeout_s: Positive = 3600.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(stall_timeout_s=stall_timeout_s, **kwargs)
        self.statistics = statistics
        self.schema = schema
        self.tolerance = tolerance
        self.fall_back = fall_back
        self.check_arguments(TrainOperator)
        self._check_program(train=self.train)


class RanksTrainOperator(TrainingOperator):
    """Further arguments of operators that train on several ranks.

    Args:
        np: Number of ranks; a host's cores are divided among its ranks. ``(2, 4)``: each try has as many as there are
            slots, 2 to 4.
        hops_conn_id: Its field ``ranks_conn_id`` names the connection where they run, of a type that a registered
            :class:`.RankPlace` takes, such as ``spark`` (executors). Without this and
            ``hosts``, they run on the step's machine. (templated)
        hosts: Hosts for the ranks, with their slots: ``gpu-1:4,gpu-2:4``. Overrides the connection's. (templated)
        conf: Spark properties, if the ranks run on executors. (templated)
        kwargs: Arguments of :class:`TrainingOperator`.
    """

    template_fields: Sequence[str] = (*TrainingOperator.template_fields, "hosts", "conf")

    def __init__(
        self,
        *,
        np: Count | tuple[Count, Count] = 2,
        hosts: str | None = None,
        conf: Mapping[str, str | float] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.np = np
        self.hosts = hosts
        self.conf = conf
        self.check_arguments(RanksTrainOperator)
        if isinstance(np, list | tuple) and np[0] > np[1]:
            raise InvalidArgument("np", np, ", expected the least and the most ranks")

    def launcher(self, hook: RuntimeHook) -> Launcher | None:
        """Returns the launcher of the cluster that the ranks run on, if they run on one."""
        where = self._where(hook)
        place = None if where is None else place_of(where)
        if place is None or not place.step_launcher:
            return super().launcher(hook)
        assert hook.settings.ranks_conn_id is not None
        options = place.step_options(hook.settings.ranks_conn_id, self.conf or {})
        return hook.make_launcher(place.step_launcher, **self.options_of(hook, place.step_launcher, **options))

    def build_spec(self, hook: RuntimeHook, context: Context) -> StepSpec:
        """Returns the step's spec; the place of its ranks is not part of the cache key or of a retry's identity."""
        where = self._where(hook)
        return replace(super().build_spec(hook, context), services={"ranks": json.dumps(where)} if where else {})

    def _where(self, hook: RuntimeHook) -> dict[str, Any] | None:
        servers = getattr(self, "parameter_servers", 0)
        most = self.np[1] if isinstance(self.np, list | tuple) else self.np
        return where_ranks_run(hook.settings.ranks_conn_id, self.hosts, most + (1 + servers if servers else 0))


class HorovodTrainOperator(RanksTrainOperator):
    """Runs a training function, or a script, on ``np`` Horovod ranks, and publishes the model.

    Either all ranks finish, or the task fails within seconds and names the rank at fault. A retry resumes from the last
    complete checkpoint. If only the worker died, the training continues, and the retry follows it.

    Args:
        train: ``module:function`` beside the DAG file, called on every rank with a
            :class:`~airflow_hops.ml.training.context.TrainContext`; returns a compiled ``keras.Model``. (templated)
        script: Instead of ``train``, a Python file, relative to the DAG's folder, that runs on every rank as
            ``__main__``, as under ``horovodrun``. It sets the global variable ``model``, or rank 0 writes a SavedModel
            to ``$HOPS_OUTPUT/saved_model``. (templated)
        script_args: The script's ``sys.argv``. (templated)
        deterministic: Whether repeated trainings give identical weights, by deterministic operations and one thread per
            rank.
        checkpoint_every_steps: Steps between checkpoints within an epoch; 0 for checkpoints only at the end of each
            epoch.
        guard_every_steps: Steps between comparisons of the ranks' weights; None for 500, 0 for a comparison only at the
            end.
        strategy: How the ranks work together: ``horovod``, or TensorFlow's ``multi_worker_mirrored`` or
            ``parameter_server`` for tf_keras models made within ``context.strategy.scope()``.
        parameter_servers: Number of ranks that hold variables with ``parameter_server``, besides ``np`` workers and a
            chief.
        kwargs: Arguments of :class:`RanksTrainOperator`. Without ``examples`` the model is exported without a transform
            graph. ``stall_timeout_s`` applies to each rank: reading a shard and tracing the model must each take less;
            an export may take longer as long as it computes.
    """

    template_fields: Sequence[str] = (*RanksTrainOperator.template_fields, "script", "script_args")

    def __init__(
        self,
        *,
        script: str | None = None,
        script_args: Sequence[str | float] = (),
        np: Count | tuple[Count, Count] = 2,
        deterministic: bool = False,
        checkpoint_every_steps: WholeNumber = 0,
        guard_every_steps: WholeNumber | None = None,
        strategy: Literal["horovod", "multi_worker_mirrored", "parameter_server"] = HOROVOD,
        parameter_servers: WholeNumber = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(np=np, **kwargs)
        if not isinstance(np, int) and (strategy != HOROVOD or deterministic):
            result = "deterministic=True" if deterministic else f"strategy={strategy!r}"
            raise BadInput(
                f"np is {np!r}, but {result}: its number of ranks cannot be left to the start of a try; give one"
            )
        self.script = script
        self.script_args = script_args
        self.deterministic = deterministic
        self.checkpoint_every_steps = checkpoint_every_steps
        self.guard_every_steps = guard_every_steps
        self.strategy = strategy
        self.parameter_servers = parameter_servers
        self.check_arguments(HorovodTrainOperator)
        self._check_program(train=self.train, script=script)
        if (strategy == PARAMETER_SERVER) != (parameter_servers > 0):
            expected = "1 or more" if strategy == PARAMETER_SERVER else f"0, as the strategy is {strategy!r}"
            raise BadInput(
                f"{type(self).__name__} {self.task_id!r}: parameter_servers is {parameter_servers}, expected {expected}"
            )
        self.script_args = script_args if is_late(script_args) else list(script_args)

    def training(self, context: Context, **options: Any) -> dict[str, Any]:
        """Returns the training options, with rendered script arguments converted to text.

        Raises:
            BadInput: the script's arguments are not a list.
        """
        if not isinstance(self.script_args, list | tuple):
            raise InvalidArgument("script_args", self.script_args, ", expected a list, as of a task that returns one")
        return super().training(context, script_args=[str(argument) for argument in self.script_args], **options)
