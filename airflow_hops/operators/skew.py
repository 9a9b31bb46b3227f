"""Operator that finds training-serving skew of captured requests, and drift between spans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_hops.airflow_internals.tasks import asset_exists
from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.errors import ModelNotFound
from airflow_hops.core.models.model_record import find_record, recorded_models
from airflow_hops.core.monitor_reports import note_report
from airflow_hops.core.names import suggestion
from airflow_hops.core.processes.remote_files import is_remote
from airflow_hops.core.skew import SkewOptions, SkewProperties
from airflow_hops.core.steps.protocol import StepResult
from airflow_hops.core.store import ArtifactStore
from airflow_hops.operators.base import HopsOperator, producer_of, skipped
from airflow_hops.operators.deploy import model_asset
from airflow_hops.operators.links import LINEAGE_LINK, SKEW_LINK
from airflow_hops.operators.spark import SparkOperator
from airflow_hops.runner.arguments import Count, Length, ModelName, Probability, Share, WholeNumber
from airflow_hops.runner.launchers.base import Launcher
from airflow_hops.runner.runtime import RuntimeHook

if TYPE_CHECKING:
    from airflow.sdk import Context


class SkewOperator(SparkOperator):
    """Compares live requests with the training data of the serving model, or one span of data with another.

    With ``model_name``, it compares the requests that the server captured since the last run with the champion's
    training data. If there are too few, the next run compares them too. The task is skipped while no model serves, and
    fails if nothing is captured.

    If they are in a remote store and the Spark connection's master is a cluster, executors read them and the training
    data, except for ``identifiers``.

    With ``reference`` and ``current``, it compares two statistics artifacts; no model server is needed.

    The artifact ``skew`` holds ``report.json``, ``histograms.jsonl`` and ``report.pb``; its property
    ``verdict`` is "stable", "drift", "pipeline_fault" or "insufficient".

    Args:
        model_name: The served model. (templated)
        captured: Output of ``IngestOperator``: captured requests, such as a window of the topic that the model server
            sends them to, instead of the captured files. Every run compares the rows of its own snapshot. (templated)
        reference: Output of ``StatisticsOperator``: the earlier span. (templated)
        current: Output of ``StatisticsOperator``: the span to judge. (templated)
        schema: Output of ``SchemaOperator``, whose drift comparators select the features and thresholds; None compares
            all. Only with ``reference`` and ``current``. (templated)
        split: The split of the statistics and examples.
        alpha: Bound on the share of unchanged features among those reported as drifted; None uses only
            thresholds.
        min_rows: Rows needed for a verdict; None for 1,000, or 5,000 without ``alpha``.
        thresholds: Distances above which single features have drifted, 0 to 1; None for the schema's, by default 0.05:
            a twentieth of the rows would have to change.
        time_feature: The model's input that holds the row's time, in seconds since the epoch; None if it has none. A
            model can take a time that it does not use if ``extra_inputs`` of ``TransformOperator`` names it. Rows whose
            time is over a day after their request are not counted in the compared period, and are noted.
        own_windows: Whether a feature has drifted only if it is further from the training data than the training data's
            own windows of time, as long as that of the current rows, are. The training data needs a time.
        predictions: With ``model_name``: whether to compare the model's predictions for the current rows with those for
            its training data.
        attribute: Whether to report how much the drift of each feature changes the model's predictions.
        identifiers: Inputs of the model that together identify a row: captured rows are then compared value by value
            with the rows of ``examples`` that have the same identifiers.
        examples: Output of ``PrepareOperator``, for ``identifiers``; None for the champion's training data. (templated)
        float_rounding: Digits after the decimal point to which floats are rounded before values are compared.
        silent_after: With ``model_name``: time without a captured request after which the task fails; None for never.
            It also fails if capture is disabled on the server.
        down_after: The same for a model server that does not answer, does not serve the model or cannot write captures;
            None for never. Until then, the report has this as ``unwell``.
        **kwargs: As :class:`~airflow_hops.operators.spark.SparkOperator`.

    Raises:
        ValueError: Neither or both of ``model_name`` and ``reference`` with ``current`` are set, or an argument
            requires the other mode.
    """

    entry = "airflow_hops.ml.skew.stage:run"
    output_kind = "skew"
    input_arguments = ("captured", "reference", "current", "schema", "examples")
    template_fields: Sequence[str] = (*SparkOperator.template_fields, *input_arguments, "model_name")
    operator_extra_links = (SKEW_LINK, LINEAGE_LINK)
    cacheable: ClassVar[bool] = False  # captured rows are not among the inputs

    def __init__(
        self,
        *,
        model_name: ModelName | None = None,
        captured: Any = None,
        reference: Any = None,
        current: Any = None,
        schema: Any = None,
        split: str = "train",
        alpha: Probability | None = 0.01,
        min_rows: Count | None = None,
        thresholds: Mapping[str, Share] | None = None,
        time_feature: str | None = None,
        own_windows: bool = False,
        predictions: bool = True,
        attribute: bool = True,
        identifiers: Sequence[str] = (),
        examples: Any = None,
        float_rounding: WholeNumber | None = None,
        silent_after: Length | None = timedelta(days=3),
        down_after: Length | None = timedelta(hours=1),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.model_name = model_name
        self.captured = captured
        self.reference = reference
        self.current = current
        self.schema = schema
        self.split = split
        self.alpha = alpha
        self.min_rows = min_rows
        self.thresholds = thresholds
        self.time_feature = time_feature
        self.own_windows = own_windows
        self.predictions = predictions
        self.attribute = attribute
        self.identifiers = identifiers
        self.examples = examples
        self.float_rounding = float_rounding
        self.silent_after = silent_after
        self.down_after = down_after
        self.check_arguments(SkewOperator)
        spans = [value is not None for value in (reference, current)]
        if (model_name is not None) == any(spans) or any(spans) != all(spans):
            raise ValueError(f"{self.task_id}: expected either model_name, or both reference and current")
        if model_name is not None and schema is not None:
            raise ValueError(f"{self.task_id}: schema requires reference and current; a served model has its own")
        if model_name is None and captured is not None:
            raise ValueError(f"{self.task_id}: captured requires model_name")
        if model_name is None and (identifiers or examples is not None or time_feature is not None):
            raise ValueError(f"{self.task_id}: identifiers, examples and time_feature require model_name")
        if examples is not None and not identifiers:
            raise ValueError(f"{self.task_id}: examples needs identifiers, which join rows with them")

    def step_params(self, context: Context) -> dict[str, Any]:
        """Returns the options of the comparison."""
        # They are no arguments, even where a subclass has attributes of these names for a purpose of its own.
        fixed = {name: getattr(SkewOptions, name) for name in ("comparator", "missing_threshold", "threshold", "seed")}
        return SkewOptions.of(self, **fixed).to_dict()

    def step_cache_key_parts(self, hook: RuntimeHook) -> dict[str, str]:
        """Returns none: Spark's properties change no results."""
        return {}

    def launcher(self, hook: RuntimeHook) -> Launcher | None:
        """Returns Spark's launcher if a cluster is to read captured requests, or that of other steps."""
        launcher = None if self.model_name is None or self.captured is not None else hook.cluster_launcher(self.conf)
        place = {**hook.settings.services, **self.step_services()}.get("serving_capture_path") or ""
        if launcher is not None and not is_remote(place):
            self.log.info("Captured requests are compared on this machine, which serving_capture_path %r is on", place)
            launcher = None
        return launcher or HopsOperator.launcher(self, hook)

    def run_step(self, hook: RuntimeHook, context: Context) -> StepResult:
        """Runs the step; skips the task while no version of the model serves.

        Raises:
            AirflowSkipException: no version serves yet.
            BadInput: the model was never deployed, and no DAG deploys it.
        """
        if self.model_name is None:
            return super().run_step(hook, context)
        skip_until_served(hook.store, self.model_name, context)
        result = super().run_step(hook, context)
        report = Artifact.from_dict(result.value)
        properties = SkewProperties.of(report)
        versions = [properties.reference.version] if properties.reference.version else []
        note_report(hook.store, self.model_name, report, versions, properties.window_end, producer_of(context))
        return result


def skip_until_served(store: ArtifactStore, model_name: str, context: Context) -> None:
    """Skips the task while no version of a model serves.

    Raises:
        AirflowSkipException: no version serves yet.
        BadInput: the model was never deployed, and no DAG deploys it.
    """
    record = find_record(store, model_name)
    if record is None:
        _check_some_dag_deploys(store, model_name)
    if record is None or record.champion is None:
        raise skipped(context["ti"], f"no version of model {model_name!r} serves yet")


def _check_some_dag_deploys(store: ArtifactStore, model_name: str) -> None:
    """Raises BadInput unless some DAG has a ``DeployModelOperator`` for a model that has no record yet."""
    if asset_exists(model_asset(model_name).uri):
        return
    known = recorded_models(store)
    raise ModelNotFound(model_name).with_text(
        f"model_name is {model_name!r}, of which no version was ever deployed to {store.root}, and no DAG has a "
        "DeployModelOperator with this name"
        + suggestion(model_name, known)
        + f" Models with a record: {', '.join(known) or 'none'}"
    )
