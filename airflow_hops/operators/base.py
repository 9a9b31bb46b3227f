"""Base class of the operators: takes artifacts, runs a step and returns an artifact."""

from __future__ import annotations

import inspect
import re
import shutil
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, TypeVar
from urllib.parse import quote

from airflow.sdk import Asset, BaseOperator, BaseOperatorLink, RetryPolicy

from airflow_hops.airflow_internals.tasks import (
    AirflowException,
    AirflowFailException,
    AirflowSkipException,
    BaseOperatorMeta,
    ParamsDict,
    conf,
    gauge,
    loop_iteration,
    normalize_name_for_stats,
)
from airflow_hops.core.artifacts.artifact import Artifact, Producer, as_artifacts
from airflow_hops.core.errors import BadInput, HopsError, add_place, dag_place
from airflow_hops.core.extensions import LAUNCHERS, LINEAGE, extensions
from airflow_hops.core.json_fields import as_json
from airflow_hops.core.names import check_known, suggestion
from airflow_hops.core.steps.protocol import Output, StepResult, StepSpec
from airflow_hops.core.steps.run_record import FILE_PARAMS
from airflow_hops.core.store.files import LocalFiles
from airflow_hops.core.times import as_utc
from airflow_hops.core.web import REFUSED_KEY
from airflow_hops.hooks.model_server import control_services
from airflow_hops.operators.links import LINEAGE_LINK
from airflow_hops.operators.retries import HopsRetryPolicy
from airflow_hops.runner.arguments import BadArgument, argument_with, check_arguments, is_late, named_functions
from airflow_hops.runner.launchers.base import Launcher
from airflow_hops.runner.progress import ProgressWriter
from airflow_hops.runner.runtime import LeftStep, RuntimeHook
from airflow_hops.runner.user_code.functions import function_name, missing_file, problem_of

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage
    from airflow.sdk import Context

    from airflow_hops.airflow_internals.triggers import BaseTrigger


_INPUT_KINDS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("reference", "current", "previous"), ("statistics",)),
    **dict.fromkeys(("tables", "captured"), ("snapshot",)),
    "examples": ("examples", "transformed_examples"),
    **{kind: (kind,) for kind in ("model", "statistics", "schema", "evaluation", "infra_blessing", "deployment")},
}
"""Kinds of artifacts by the argument that takes them."""

_RETURN_KEY = "return_value"
"""XCom's key of a task's output."""

_TIMEOUT_MARGIN_S = 60.0
"""Seconds after ``execution_timeout`` at which Airflow ends a deferred task that no triggerer has resumed."""

_KINDS = {kind for kinds in _INPUT_KINDS.values() for kind in kinds}
"""Kinds of artifacts that operators take, and make."""

_Task = TypeVar("_Task")


class TaskType(BaseOperatorMeta):
    """Type of the operators' classes: errors of a constructor name the line of the DAG file, and similar arguments."""

    def __call__(cls: type[_Task], *args: Any, **kwargs: Any) -> _Task:
        """Makes the task; with a result of ``Any``, type checkers would not look at the constructor's arguments."""
        try:
            task: _Task = super().__call__(*args, **kwargs)  # type: ignore[misc]  # mypy refuses this type of cls
            return task
        except Exception as error:
            add_place(error)
            if isinstance(error, TypeError):
                known = arguments_of(cls.__mro__)
                for name in kwargs.keys() - known:
                    mapping = argument_with(cls.__init__, name)
                    advice = f"; it is a field of {mapping}" if mapping else suggestion(name, known)
                    if name.endswith("_conn_id"):
                        advice = "; fields of the connection hops_conn_id name Spark, ranks and model server"
                    error.add_note(f"{cls.__name__} has no argument {name!r}{advice}")
            raise


class HopsTask(BaseOperator, metaclass=TaskType):
    """Base of all operators; ``input_arguments`` names those that take artifacts, ``input_kinds`` their kinds.

    Args:
        task_id: By default the stage's name: ``deploy`` for ``DeployModelOperator``, ``train`` for
            ``HorovodTrainOperator``. ``partial`` needs one.

    Attributes:
        hook: The hook of the last execution.
        made: The artifact that it made, or took from an earlier run.
        given: Those of ``input_arguments`` that the DAG gives.
        functions: Arguments that name functions of user code, with the number of arguments that these are called with.
        place: File and line of the DAG file that makes the task, ``file:line``.
    """

    input_arguments: ClassVar[Sequence[str]] = ()
    input_kinds: ClassVar[Mapping[str, tuple[str, ...]]] = _INPUT_KINDS
    functions: ClassVar[Mapping[str, int]] = {}
    ui_color = "#dbe9f6"
    hook: RuntimeHook | None = None
    made: Artifact | None = None
    given: frozenset[str] = frozenset()
    hops_conn_id: str

    def __init__(self, *, task_id: str | None = None, **kwargs: Any) -> None:
        super().__init__(task_id=task_id or stage_name(type(self).__name__), **kwargs)
        self.place = dag_place()

    def check_arguments(self, operator: type[HopsTask], **others: Any) -> None:
        """Checks the arguments that an operator's constructor has set as attributes, by its annotations.

        Args:
            operator: The class of the constructor.
            others: Its arguments that are not attributes of the same name.

        A function becomes its name, ``module:function``, so that it makes no difference which of them the DAG gives.

        Raises:
            BadArgument: a literal has another type or value, a function has no name that a step can import, or the
                source beside the DAG file has no such function or file.
        """
        dag = self.get_dag()
        file = None if dag is None else dag.fileloc
        try:
            for name, value in named_functions(operator.__init__, vars(self), lambda each: function_name(each, file)):
                setattr(self, name, value)
            check_arguments(operator.__init__, {**vars(self), **others}, self.template_fields)
            for name in self.input_arguments:
                _check_input(name, vars(self).get(name), self.input_kinds.get(name, ()))
            if file is not None:
                self._check_user_code(operator, code_folders(file))
        except BadArgument as error:
            raise BadArgument(f"{type(self).__name__} {self.task_id!r}: {error}") from None
        self.given |= {name for name in self.input_arguments if vars(self).get(name) is not None}

    def named_arguments(self) -> Collection[str] | None:
        """Returns names of further arguments that those of ``functions`` get if they take them; None if unknown."""
        return ()

    def _check_user_code(self, operator: type[HopsTask], folders: list[Path]) -> None:
        """Raises BadArgument if a function or file of the constructor is not as the step needs it."""
        for name in FILE_PARAMS if operator is type(self) and self.place else ():
            value = vars(self).get(name)
            if isinstance(value, str) and not is_late(value) and (problem := missing_file(value, folders)):
                raise BadArgument(f"{name} is {value!r}: {problem}")
        if vars(operator).get("functions") is not self.functions:
            return
        for name, count in self.functions.items():
            value = vars(self).get(name)
            for each in [item[0] for item in (value or {}).values()] if name == "metrics" else [value]:
                if not isinstance(each, str) or is_late(each):
                    continue
                if problem := problem_of(each, count, folders, self.named_arguments()):
                    raise BadArgument(f"{name} is {each!r}: {problem}")

    def step_inputs(self) -> Mapping[str, Any]:
        """Returns the upstream artifacts by role; a value is an artifact's dict or a list of them."""
        return {name: value for name in self.input_arguments if (value := getattr(self, name)) is not None}

    def get_openlineage_facets_on_start(self) -> OperatorLineage[Any, Any] | None:
        """Returns inputs, output and decisions, or None if nothing describes them.

        OpenLineage's provider also calls this method when the task succeeds or fails.
        """
        describe = extensions(LINEAGE).get("openlineage")
        return None if describe is None else describe.load()(self)


class HopsOperator(HopsTask):
    """Arguments of all operators.

    A subclass sets ``entry``, ``output_kind`` and ``template_fields``, and lists the step's parameters and inputs in
    ``param_arguments`` and ``input_arguments``, or overrides :meth:`step_params` and :meth:`step_inputs`.

    Args:
        hops_conn_id: Connection of type ``hops``. (templated)
        runtime: Name of the environment in which the step runs, made with ``airflow hops runtime create --name``; None
            for the connection's. (templated)
        cache: Whether the task may return an earlier artifact with the same code, parameters and inputs; None for
            ``[hops] cache``. It has no effect on deploy, rollout, the operators that change the serving versions, skew
            and ``@task.hops``, which always run, nor on schema, which is frozen.
        launcher_name: Name of the step's launcher: ``local``, ``spark``, or one registered by an installed
            distribution; None for the connection's field ``launcher``, or else this machine or Spark.
        launcher_options: Keyword arguments of the launcher, which replace those of the connection.
        partition_by_window: Whether the asset event has the artifact's window as partition key, ``start|end``. Airflow
            then starts the DAGs that are scheduled by a ``PartitionedAssetTimetable`` of the asset, and no others.
        deferrable: Whether to wait for a step that is a pod in the triggerer, without a worker slot; by default
            ``[operators] default_deferrable``. Other steps need their worker, as do those of schema and rollout, and of
            an ingest that plans its rows first.
        retry_policy: Airflow's policy of retries; None for :class:`~airflow_hops.operators.HopsRetryPolicy`.
    """

    entry: ClassVar[str]
    output_kind: ClassVar[str | None] = None
    param_arguments: ClassVar[Sequence[str]] = ()
    template_fields: Sequence[str] = ("hops_conn_id", "runtime")
    operator_extra_links: Collection[BaseOperatorLink] = (LINEAGE_LINK,)
    controls_server: ClassVar[bool] = False
    """Whether the step changes what the model server serves."""
    has_asset: ClassVar[bool] = True
    """Whether the task emits an event of an asset of its own with each artifact."""
    _left: LeftStep | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.output_kind:
            _KINDS.add(cls.output_kind)

    def __init__(
        self,
        *,
        hops_conn_id: str = RuntimeHook.default_conn_name,
        runtime: str | None = None,
        cache: bool | None = None,
        launcher_name: str | None = None,
        launcher_options: Mapping[str, Any] | None = None,
        partition_by_window: bool = False,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        retry_policy: RetryPolicy | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(retry_policy=retry_policy or HopsRetryPolicy(), **kwargs)
        self.hops_conn_id = hops_conn_id
        self.runtime = runtime
        self.cache = cache
        self.launcher_name = launcher_name
        self.launcher_options = launcher_options
        self.partition_by_window = partition_by_window
        self.deferrable = deferrable
        self.check_arguments(HopsOperator)
        if launcher_name is not None:
            check_known(f"{type(self).__name__} {self.task_id!r}: launcher_name", launcher_name, extensions(LAUNCHERS))
        dag = self.get_dag()
        if self.output_kind and self.has_asset and dag is not None:
            # Airflow 3.3: accepts only ASCII addresses, and silently drops DAGs with others.
            uri = f"hops://{quote(dag.dag_id)}/{quote(self.task_id)}"
            self._asset: Asset | None = Asset(name=f"{dag.dag_id}.{self.task_id}", uri=uri, group="hops")
            self.outlets = [*self.outlets, self._asset]
        else:
            self._asset = None

    def step_params(self, context: Context) -> dict[str, Any]:
        """Returns the keyword arguments of the entry function as JSON values."""
        return {name: as_json(getattr(self, name)) for name in self.param_arguments}

    def step_services(self) -> Mapping[str, str]:
        """Returns services besides the connection's: those for the control of its model server."""
        return control_services(self.hops_conn_id) if self.controls_server else {}

    def step_cache_key_parts(self, hook: RuntimeHook) -> dict[str, str]:
        """Returns additional parts of the cache key."""
        return {}

    def output_uri(self, hook: RuntimeHook, producer: Producer) -> str:
        """Returns the artifact's address; by default each DAG run has its own."""
        assert self.output_kind is not None
        return hook.store.address(producer, self.output_kind)

    def launcher(self, hook: RuntimeHook) -> Launcher | None:
        """Returns the operator's default launcher: that of the ``hops`` connection; None for this machine."""
        name = hook.settings.launcher
        return hook.make_launcher(name, **self.options_of(hook, name)) if name else None

    def chosen_launcher(self, hook: RuntimeHook) -> Launcher | None:
        """Returns the launcher of ``launcher_name``, or the operator's default."""
        if self.launcher_name is None:
            return self.launcher(hook)
        return hook.make_launcher(self.launcher_name, **self.options_of(hook, self.launcher_name))

    def options_of(self, hook: RuntimeHook, launcher: str, **options: Any) -> dict[str, Any]:
        """Returns a launcher's options: of the connection, if it names this launcher, ``options``, and of the task."""
        settings = hook.settings
        defaults = settings.launcher_options if launcher == settings.launcher else {}
        return {**defaults, **options, **(self.launcher_options or {})}

    def execute(self, context: Context) -> Any:
        """Runs the step and returns its value: plain JSON, or the artifact's dict plus ``seconds`` by phase."""
        self.hook = hook = RuntimeHook(self.hops_conn_id, runtime=self.runtime)
        try:
            hook.make_store(lambda root: self.has_used(root, context))
            hook.progress = ProgressWriter(hook.store, producer_of(context))
            result = self.run_step(hook, context)
            hook.progress.succeeded()
        except HopsError as error:
            if hook.progress is not None:
                hook.progress.failed(str(error))
            raise airflow_error(error) from error
        if result.is_artifact:
            self._announce(context, Artifact.from_dict(result.value))
            return {**result.value, "seconds": dict(result.seconds)}
        return result.value

    def has_used(self, root: str, context: Context) -> bool:
        """Returns whether the task's inputs, or its output in an earlier run, are in a store.

        Airflow does not look up earlier values of a task in a loop: there, the inputs alone tell.
        """
        ti, is_in_loop = context["ti"], loop_iteration(context) >= 0
        earlier = None if is_in_loop else ti.xcom_pull(task_ids=ti.task_id, include_prior_dates=True)
        return f"{root}/" in f"{earlier} {self.step_inputs()}"

    def launcher_of_try(self, hook: RuntimeHook, context: Context) -> Launcher | None:
        """Returns the launcher of this try of the task."""
        return self.chosen_launcher(hook)

    def run_step(self, hook: RuntimeHook, context: Context) -> StepResult:
        """Builds the spec and runs it."""
        timeout = self.execution_timeout
        return hook.run(
            self.build_spec(hook, context),
            launcher=self.launcher_of_try(hook, context),
            cache=self._cache_enabled(),
            until=None if timeout is None else time.time() + timeout.total_seconds(),
            defer=self._defer_to if self.defers_step() else None,
            left=self._left,
        )

    def defers_step(self) -> bool:
        """Returns whether the task may leave its step to a trigger: it is executed again to take the result."""
        return self.deferrable

    def _defer_to(self, trigger: BaseTrigger, left: LeftStep) -> NoReturn:
        # The trigger fires in time. Airflow's own timeout is for the case that no triggerer runs.
        timeout = None
        if left.until is not None:
            timeout = timedelta(seconds=left.until - time.time() + _TIMEOUT_MARGIN_S)
        self.defer(trigger=trigger, method_name="resume_step", kwargs={"left": asdict(left)}, timeout=timeout)

    def resume_step(self, context: Context, event: Any, left: Mapping[str, Any]) -> Any:
        """Continues after the triggerer has waited for the step."""
        self._left = LeftStep(**{**left, "event": event})
        return self.execute(context)

    cacheable: ClassVar[bool] = True
    """False for steps whose effect lies outside their artifact (a deployment)."""

    def build_spec(self, hook: RuntimeHook, context: Context) -> StepSpec:
        """Returns the step's spec; the hook fills in the rest.

        Raises:
            BadInput: an input is not an artifact or one of another kind, or a task upstream left none.
        """
        for name in self.input_arguments:
            if name in self.given and getattr(self, name) is None:
                raise BadInput(f"{name} is the output of a task without one (it was skipped or returned nothing)")
        inputs = {role: as_artifacts(role, value) for role, value in self.step_inputs().items() if value is not None}
        for role in self.input_arguments:
            for artifact in inputs.get(role, ()):
                _check_kind(role, artifact, self.input_kinds.get(role, ()))
        producer, launcher = producer_of(context), self.chosen_launcher(hook)
        parts = {"environment": launcher.environment} if launcher is not None and launcher.environment else {}
        return StepSpec(
            step=self.task_id,
            entry=self.entry,
            params=self.step_params(context),
            inputs=inputs,
            output=Output(self.output_uri(hook, producer), self.output_kind) if self.output_kind else None,
            producer=producer,
            code_paths=code_paths_of(context),
            cache_key_parts={**self.step_cache_key_parts(hook), **parts},
            services=self.step_services(),
        )

    def on_kill(self) -> None:
        """Ends the step with all its processes."""
        if self.hook is not None:
            self.hook.kill()

    def _announce(self, context: Context, artifact: Artifact) -> None:
        rows = " ".join(f"{name}: {c.rows_in} in, {c.rows_out} out" for name, c in artifact.rows.items())
        self.log.info("Artifact %s %s %s", artifact.kind, artifact.uri, rows)
        self._report_metrics(artifact)
        self.made = artifact
        if self._asset is not None:
            event = context["outlet_events"][self._asset]
            window = artifact.properties.get("window")
            event.extra = {"uri": artifact.uri, "kind": artifact.kind, "fingerprint": artifact.fingerprint}
            if window is not None:
                event.extra["window"] = list(window)
            if self.partition_by_window:
                if window is None:
                    raise AirflowFailException(
                        f"partition_by_window is True, but {artifact.kind} {artifact.uri} has no window; expected data "
                        "of an IngestOperator with window_start or window_end. Set one, or omit partition_by_window"
                    )
                event.add_partitions(partition_key(window))

    def _report_metrics(self, artifact: Artifact) -> None:
        """Reports the artifact's numbers, and the space of a local store, as metrics of Airflow."""
        tags = {"dag_id": self.dag_id, "task_id": self.task_id, "kind": artifact.kind}
        for name, value in artifact.metrics.items():
            gauge("hops.artifact_metric", value, tags={**tags, "metric": normalize_name_for_stats(name, False)})
        for name, counts in artifact.rows.items():
            table = normalize_name_for_stats(name, False)
            for outcome, rows in (("out", counts.rows_out), ("rejected", counts.rows_rejected)):
                gauge("hops.artifact_rows", rows, tags={**tags, "table": table, "outcome": outcome})
        gauge("hops.artifact_time", round(time.time()), tags=tags)
        if self.hook is None:
            return
        store = self.hook.store
        try:
            cost = store.manifest(artifact.uri).cost
        except (OSError, HopsError) as error:
            # The artifact is complete, so a metric that is not reported must not fail the task.
            self.log.warning("The cost of the step is not reported: %s", error)
            cost = {}
        for name in cost.keys() & {"core_s", "gpu_s"}:
            gauge("hops.step_seconds", cost[name], tags={**tags, "of": name.removesuffix("_s")})
        if isinstance(store.files, LocalFiles):
            disk = shutil.disk_usage(store.files.path(store.root))
            gauge("hops.store_free_percent", round(100 * disk.free / disk.total, 1), tags={"dag_id": self.dag_id})

    def _cache_enabled(self) -> bool:
        enabled = conf.getboolean("hops", "cache", fallback=True) if self.cache is None else bool(self.cache)
        return enabled and self.cacheable


def _check_input(role: str, value: Any, expected: Sequence[str]) -> None:
    """Raises BadArgument if an argument cannot become an artifact of one of its kinds."""
    if isinstance(value, BaseOperator):
        raise BadArgument(f"{role} is the task {value.task_id!r}; expected its output: pass `.output` of it")
    if expected and isinstance(value, str) and not is_late(value):
        raise BadArgument(f"{role} is {value!r}; expected the output of a task")
    task = getattr(value, "operator", None)
    kind = getattr(task, "output_kind", None) or getattr(getattr(task, "operator_class", None), "output_kind", None)
    if task is not None and value.key == _RETURN_KEY and expected and kind in _KINDS and kind not in expected:
        raise BadArgument(
            f"{role} is the output of {task.task_id!r}, an artifact of kind {kind!r}; expected "
            f"{' or '.join(map(repr, expected))}: pass the output of another task"
        )


def _check_kind(role: str, artifact: Artifact, expected: Sequence[str]) -> None:
    """Raises BadInput for the output of another operator; kinds of users' functions are not known, and pass."""
    if expected and artifact.kind in _KINDS and artifact.kind not in expected:
        raise BadInput(
            f"input {role!r} is {artifact.uri}, an artifact of kind {artifact.kind!r}; expected "
            f"{' or '.join(map(repr, expected))}: pass the output of another task"
        )


def stage_name(operator: str) -> str:
    """Returns the name of the stage that a class of operators is for."""
    name = re.sub(r"^Horovod|(Model|Examples)?(Decorated)?Operator$", "", operator)
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


def airflow_error(error: HopsError) -> AirflowException:
    """Converts an error to Airflow's; errors that a retry cannot fix fail the task at once."""
    return (AirflowException if error.retryable else AirflowFailException)(str(error))


def partition_key(window: Sequence[str | None]) -> str:
    """Returns a window as partition key: start and end in UTC, as Airflow's mappers of times read them.

    ``ProductMapper`` applies a mapper to each of the two; an unbounded side is empty.
    """
    return "|".join(as_utc(time).strftime("%Y-%m-%dT%H:%M:%S") if time else "" for time in window)


def producer_of(context: Context) -> Producer:
    """Returns the task instance as the producer that artifacts record."""
    ti = context["ti"]
    map_index = ti.map_index if ti.map_index is not None else -1
    return Producer(ti.dag_id, ti.run_id, ti.task_id, map_index, ti.try_number, loop_iteration(context))


def code_paths_of(context: Context) -> tuple[str, ...]:
    """Returns the folders of user code: that of the DAG file, the parent of its package, and its bundle."""
    bundle = getattr(context["ti"], "bundle_instance", None)
    folders = [*code_folders(context["dag"].fileloc), *([bundle.path] if bundle is not None else [])]
    return tuple(dict.fromkeys(map(str, folders)))


def code_folders(dag_file: str) -> list[Path]:
    """Returns the folder of a DAG file, and the parent of the package that it is in."""
    own = top = Path(dag_file).parent
    while (top / "__init__.py").exists():
        top = top.parent
    return [own, top]


def skipped(ti: Any, reason: str, **facts: Any) -> AirflowSkipException:
    """Returns the exception that skips a task, and pushes the reason to XCom, since skipped tasks return nothing.

    ``facts`` are further details for the web pages.
    """
    ti.xcom_push(key=REFUSED_KEY, value={"reason": reason, **facts})
    return AirflowSkipException(reason)


def arguments_of(classes: Sequence[type]) -> set[str]:
    """Returns the names of the arguments of the classes' own constructors."""
    constructors = [vars(each)["__init__"] for each in classes if "__init__" in vars(each)]
    return {name for each in constructors for name in inspect.signature(each).parameters}


def own_params(params: Mapping[str, Any]) -> list[str]:
    """Returns the names of the params set on the task itself; Airflow merges the DAG's params into them."""
    if not isinstance(params, ParamsDict):
        return sorted(params)
    return sorted(name for name in params if params.get_param(name).source == "task")
