"""The base of every stage's operator: artifacts in, a step run, an artifact out."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import quote

from airflow.configuration import conf
from airflow.sdk import Asset, BaseOperator, BaseOperatorLink
from airflow.sdk.definitions.param import ParamsDict
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException

from airflow_hops.core.contract.artifacts import Artifact, BadInput, HopsError, Producer
from airflow_hops.core.contract.json_fields import as_json
from airflow_hops.core.contract.protocol import Output, StepResult, StepSpec
from airflow_hops.core.contract.web import REFUSED_KEY
from airflow_hops.hooks.progress import ProgressWriter
from airflow_hops.hooks.runtime import RuntimeHook
from airflow_hops.launchers.base import Launcher
from airflow_hops.operators.links import LineageLink

if TYPE_CHECKING:
    from airflow.sdk import Context


class HopsTask(BaseOperator):
    """An operator whose arguments are attributes; those in ``input_arguments`` and ``templated`` are templated."""

    input_arguments: ClassVar[Sequence[str]] = ()
    templated: ClassVar[Sequence[str]] = ()
    ui_color = "#dbe9f6"

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        of_bases = (name for base in cls.__mro__ for name in vars(base).get("template_fields", ()))
        cls.template_fields = tuple(dict.fromkeys([*of_bases, *cls.input_arguments, *cls.templated]))

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Stands for the attributes that :meth:`store_arguments` sets."""

    def store_arguments(self, arguments: Mapping[str, Any]) -> None:
        """Makes each argument an attribute of its name, as Airflow expects of templated fields.

        Args:
            arguments: The ``locals()`` of the subclass's ``__init__``. A name that is a property of Airflow's operators
                (``label``) is left out, and so are ``params``, which are Airflow's.
        """
        for name in arguments.keys() - {"self", "params", "kwargs", "__class__"}:
            if not isinstance(getattr(type(self), name, None), property):
                setattr(self, name, arguments[name])


class HopsOperator(HopsTask):
    """The arguments of all operators.

    A subclass names its ``entry`` and ``output_kind``, calls :meth:`store_arguments`, and lists the arguments that are
    the step's parameters and inputs in ``param_arguments`` and ``input_arguments``, or overrides :meth:`step_params`
    and :meth:`step_inputs`. Inputs are templated, and further arguments that ``templated`` lists.

    Args:
        hops_conn_id: Connection of type ``hops``. (templated)
        runtime: Name of the environment in which the step runs, made with ``airflow hops runtime create --name``; None
            for the connection's. (templated)
        cache: Whether the task may return an artifact that it made before from the same code, parameters and inputs;
            None means what ``[hops] cache`` says. It has no effect on deploy, rollout, the operators that change what
            serves, skew and ``@task.hops``, which always run, nor on schema, which is frozen.
        launcher_name: Name of the launcher that starts the step: one that an installed distribution registers; None for
            the operator's own, this machine or Spark.
        launcher_options: Its keyword arguments.
    """

    entry: ClassVar[str]
    output_kind: ClassVar[str | None] = None
    param_arguments: ClassVar[Sequence[str]] = ()
    templated: ClassVar[Sequence[str]] = ("hops_conn_id", "runtime")
    operator_extra_links: Collection[BaseOperatorLink] = (LineageLink(),)

    def __init__(
        self,
        *,
        hops_conn_id: str = RuntimeHook.default_conn_name,
        runtime: str | None = None,
        cache: bool | None = None,
        launcher_name: str | None = None,
        launcher_options: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.store_arguments(locals())
        dag = self.get_dag()
        if self.output_kind and dag is not None:
            # Airflow takes addresses in ASCII alone, and where one is not, it lists the DAG without a word no more.
            uri = f"hops://{quote(dag.dag_id)}/{quote(self.task_id)}"
            self._asset: Asset | None = Asset(name=f"{dag.dag_id}.{self.task_id}", uri=uri, group="hops")
            self.outlets = [*self.outlets, self._asset]
        else:
            self._asset = None
        self._hook: RuntimeHook | None = None

    def step_params(self, context: Context) -> dict[str, Any]:
        """Keyword arguments of the entry function; JSON values."""
        return {name: as_json(getattr(self, name)) for name in self.param_arguments}

    def step_inputs(self) -> Mapping[str, Any]:
        """Upstream artifacts by role: an artifact's dict, or a list of them."""
        return {name: value for name in self.input_arguments if (value := getattr(self, name)) is not None}

    def step_services(self) -> Mapping[str, str]:
        """Services that the step gets in the place of those of the ``hops`` connection."""
        return {}

    def step_cache_key_parts(self, hook: RuntimeHook) -> dict[str, str]:
        """Returns additional parts of the cache key."""
        return {}

    def output_uri(self, hook: RuntimeHook, producer: Producer) -> str:
        """Returns the artifact's address: by default one of its own for each DAG run."""
        assert self.output_kind is not None
        return hook.store.address(producer, self.output_kind)

    def launcher(self, hook: RuntimeHook) -> Launcher | None:
        """Returns the operator's own launcher; None for this machine."""
        return None

    def chosen_launcher(self, hook: RuntimeHook) -> Launcher | None:
        """Returns the launcher of ``launcher_name``, or else the operator's own."""
        if self.launcher_name is None:
            return self.launcher(hook)
        return hook.make_launcher(self.launcher_name, **(self.launcher_options or {}))

    def execute(self, context: Context) -> Any:
        """Runs the step and returns its value for XCom.

        Returns:
            An artifact's dict, with the step's ``seconds`` by phase beside it; or plain JSON.
        """
        self._hook = hook = RuntimeHook(self.hops_conn_id, runtime=self.runtime)
        try:
            hook.progress = ProgressWriter(hook.store, producer_of(context))
            result = self.run_step(hook, context)
            hook.progress.succeeded()
        except HopsError as error:
            if hook.progress is not None:
                hook.progress.failed(str(error))
            raise airflow_error(error) from error
        finally:
            self._hook = None
        if result.is_artifact:
            self._announce(context, Artifact.from_dict(result.value))
            return {**result.value, "seconds": dict(result.seconds)}
        return result.value

    def run_step(self, hook: RuntimeHook, context: Context) -> StepResult:
        """Builds the spec and runs it."""
        return hook.run(
            self.build_spec(hook, context),
            launcher=self.chosen_launcher(hook),
            cache=self._cache_enabled() and self.cacheable,
        )

    cacheable: ClassVar[bool] = True
    """False for steps whose effect lies outside their artifact (a deployment)."""

    def build_spec(self, hook: RuntimeHook, context: Context) -> StepSpec:
        """The step, but for what the hook fills in.

        Raises:
            BadInput: an input is not an artifact.
        """
        producer = producer_of(context)
        return StepSpec(
            step=self.task_id,
            entry=self.entry,
            params=self.step_params(context),
            inputs={role: _artifacts(role, value) for role, value in self.step_inputs().items() if value is not None},
            output=Output(self.output_uri(hook, producer), self.output_kind) if self.output_kind else None,
            producer=producer,
            code_paths=code_paths_of(context),
            cache_key_parts=self.step_cache_key_parts(hook),
            services=self.step_services(),
        )

    def on_kill(self) -> None:
        """Ends the step with all its processes."""
        if self._hook is not None:
            self._hook.kill()

    def _announce(self, context: Context, artifact: Artifact) -> None:
        rows = " ".join(f"{name}: {c.rows_in} in, {c.rows_out} out" for name, c in artifact.rows.items())
        self.log.info("Artifact %s %s %s", artifact.kind, artifact.uri, rows)
        if self._asset is not None:
            context["outlet_events"][self._asset].extra = {
                "uri": artifact.uri,
                "kind": artifact.kind,
                "fingerprint": artifact.fingerprint,
            }

    def _keep_cards(self, context: Context, model_name: str) -> None:
        """Keeps the cards of the versions that this task decided on."""
        from airflow_hops.reports.kept_cards import keep_cards  # it would cost every DAG file what it imports

        docs = {self.dag_id: context["dag"].doc_md or ""}
        keep_cards(RuntimeHook(self.hops_conn_id).store, model_name, docs.get)

    def _cache_enabled(self) -> bool:
        if self.cache is not None:
            return bool(self.cache)
        return conf.getboolean("hops", "cache", fallback=True)


def airflow_error(error: HopsError) -> AirflowException:
    """Returns the error as Airflow's; one that no retry can correct fails the task at once."""
    return (AirflowException if error.retryable else AirflowFailException)(str(error))


def producer_of(context: Context) -> Producer:
    """The task instance, as artifacts name who made them."""
    ti = context["ti"]
    map_index = ti.map_index if ti.map_index is not None else -1
    return Producer(ti.dag_id, ti.run_id, ti.task_id, map_index, ti.try_number)


def _artifacts(role: str, value: Any) -> tuple[Artifact, ...]:
    # The outputs of a mapped task come as a lazy sequence, which is neither list nor tuple.
    values = value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
    try:
        return tuple(v if isinstance(v, Artifact) else Artifact.from_dict(v) for v in values)
    except BadInput as error:
        raise BadInput(f"input {role!r}: {error}") from error


def code_paths_of(context: Context) -> tuple[str, ...]:
    """The folders of user code: the DAG file's own, the one that its package lies in, and its bundle's."""
    own = top = Path(context["dag"].fileloc).parent
    while (top / "__init__.py").exists():
        top = top.parent
    bundle = getattr(context["ti"], "bundle_instance", None)
    return tuple(dict.fromkeys([str(own), str(top), *([str(bundle.path)] if bundle is not None else [])]))


def skipped(ti: Any, reason: str, **facts: Any) -> AirflowSkipException:
    """Returns the exception that skips a task; its reason is stored for the pages, as a skipped task returns nothing.

    Args:
        ti: The task instance.
        reason: Why, in words.
        **facts: What else the pages are to know.
    """
    ti.xcom_push(key=REFUSED_KEY, value={"reason": reason, **facts})
    return AirflowSkipException(reason)


def own_params(params: Mapping[str, Any]) -> list[str]:
    """The keys that the task was given: Airflow merges the DAG's params in before an operator sees its own."""
    if not isinstance(params, ParamsDict):
        return sorted(params)
    return sorted(name for name in params if params.get_param(name).source == "task")
