"""Operators of fleets: train one, take segments' models from another, and find segments whose rows have changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.lineage import COMPARED
from airflow_hops.core.models.continued_models import champion_of_run
from airflow_hops.core.names import check_known
from airflow_hops.core.stability import experimental
from airflow_hops.core.steps.protocol import StepSpec
from airflow_hops.extensions.fleet.core.options import LINEAR, TREES, FleetOptions, FleetSkewProperties
from airflow_hops.extensions.fleet.core.source import SegmentSource
from airflow_hops.operators.base import HopsOperator, producer_of
from airflow_hops.operators.links import LINEAGE_LINK, MODELS_LINK
from airflow_hops.operators.skew import skip_until_served
from airflow_hops.operators.spark import SparkOperator
from airflow_hops.runner.arguments import (
    BadArgument,
    Count,
    FunctionName,
    ModelName,
    NotNegative,
    Probability,
    Share,
    Version,
    WholeNumber,
)
from airflow_hops.runner.connections import state_of_sources
from airflow_hops.runner.runtime import RuntimeHook

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_hops.core.steps.protocol import StepResult


@experimental
class TrainFleetOperator(SparkOperator):
    """Trains a fleet: a pooled model of all rows, and a model for each segment where that is better for its rows.

    All segments are trained within the step, on processes of its machine, or on the executors of a Spark connection
    whose master is a cluster. The artifact is a ``model`` of the format ``fleet``, which other operators evaluate,
    deploy and ask like any other; requests have the segment's key as an input. It also holds ``summary.json``, a row
    for each segment, and ``statistics/``, those of the segments' training rows.

    Args:
        examples: Output of ``PrepareOperator``. Models learn from the split ``train``; the others are for the
            evaluation. (templated)
        source: A :class:`~airflow_hops.extensions.fleet.core.source.SegmentSource` of raw files, instead of
            ``examples``; with ``model_name``, a run reads only files that are new or have rows of changed segments.
            (templated)
        segment: Column of strings or integers with the segment's key.
        model: ``linear``, ``trees``, or a function beside the DAG file, called with
            :class:`~airflow_hops.extensions.fleet.ml.learners.SegmentRows`, that returns an estimator or a Keras model
            of dense layers.
        columns: The features; None for all columns but label, key, time, weight and ``groups``.
        model_name: Name of a served fleet. Segments whose rows and options are those of its champion keep their models,
            and are not trained again. None to train all. (templated)
        only: Keys of segments to train again; all others keep the champion's models. (templated)
        skew: Output of ``FleetSkewOperator``, whose drifted segments are trained again, as ``only``. (templated)
        groups: Columns with groups of segments, such as a region, for monitors.
        max_failed: Share of the segments whose training may fail; the pooled model answers these, or the model before.
        max_segments: Number of different keys above which the task fails.
        look_alikes: ``refuse`` to fail if keys differ only in case, spaces or Unicode's forms, ``keep`` to take them
            for different segments.
        min_rows: Training rows below which the pooled model answers a segment.
        standard_errors: A segment's model must be better than the pooled one on held-out rows by more than so many
            standard errors of the mean difference.
        seed: Seed of ``trees`` and functions.
        statistics: Output of ``StatisticsOperator``, for monitors of all rows together. (templated)
        schema: Output of ``SchemaOperator``: a segment whose rows break it fails, alone. (templated)
        **kwargs: As :class:`~airflow_hops.operators.spark.SparkOperator`.
    """

    entry = "airflow_hops.extensions.fleet.ml.stage:run"
    output_kind = "model"
    functions: ClassVar[Mapping[str, int]] = {}
    input_arguments = ("examples", "skew", "statistics", "schema")
    input_kinds: ClassVar[Mapping[str, tuple[str, ...]]] = {**HopsOperator.input_kinds, "skew": ("fleet_skew",)}
    template_fields: Sequence[str] = (*SparkOperator.template_fields, *input_arguments, "source", "model_name", "only")
    operator_extra_links = (LINEAGE_LINK,)

    def __init__(
        self,
        *,
        examples: Any = None,
        source: SegmentSource | Mapping[str, Any] | None = None,
        segment: str,
        model: str | FunctionName = LINEAR,
        columns: Sequence[str] | None = None,
        model_name: ModelName | None = None,
        only: Sequence[str] | None = None,
        skew: Any = None,
        groups: Sequence[str] = (),
        max_failed: Share = 0.0,
        max_segments: Count = 20_000,
        look_alikes: Literal["refuse", "keep"] = "refuse",
        min_rows: Count = 30,
        standard_errors: NotNegative = 3.0,
        seed: WholeNumber = 0,
        statistics: Any = None,
        schema: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.examples = examples
        self.source = source
        self.segment = segment
        self.model = model
        self.columns = columns
        self.model_name = model_name
        self.only = only
        self.skew = skew
        self.groups = groups
        self.max_failed = max_failed
        self.max_segments = max_segments
        self.look_alikes = look_alikes
        self.min_rows = min_rows
        self.standard_errors = standard_errors
        self.seed = seed
        self.statistics = statistics
        self.schema = schema
        self.check_arguments(TrainFleetOperator)
        self.source = source.to_dict() if isinstance(source, SegmentSource) else source
        if (examples is None) == (source is None):
            raise BadArgument(f"TrainFleetOperator {self.task_id!r}: expected either examples or source")
        if isinstance(self.model, str) and ":" not in self.model:
            check_known(f"TrainFleetOperator {self.task_id!r}: model", self.model, (LINEAR, TREES))
        if model_name is None and (only is not None or skew is not None):
            raise BadArgument(
                f"TrainFleetOperator {self.task_id!r}: only and skew require model_name, the fleet whose other "
                "segments keep their models"
            )

    def step_params(self, context: Context) -> dict[str, Any]:
        """Returns the options of the training."""
        return FleetOptions.of(self).to_dict()

    def step_cache_key_parts(self, hook: RuntimeHook) -> dict[str, str]:
        """Adds the state of the source's files, so that changed files are read again."""
        if self.source is None:
            return super().step_cache_key_parts(hook)
        state = state_of_sources({"source": SegmentSource.from_value("source", self.source)})
        return {**super().step_cache_key_parts(hook), "sources": state}

    def build_spec(self, hook: RuntimeHook, context: Context) -> StepSpec:
        """Returns the step's spec, whose input ``champion`` is the fleet before, if one serves."""
        spec = super().build_spec(hook, context)
        if not self.model_name:
            return spec
        champion = champion_of_run(hook.store, producer_of(context), self.model_name)
        if champion is None:
            self.log.info("No version of model %r served when the run began: all segments are trained", self.model_name)
            return spec
        return replace(spec, inputs={**spec.inputs, COMPARED: (champion[0],)})


@experimental
class SelectSegmentsOperator(HopsOperator):
    """Makes a fleet of the served one in which some segments have other models; all others stay bit by bit.

    With ``model``, segments get the models of a new fleet: those that proved themselves, for instance. With
    ``version``, they go back to those of an earlier version, and trainings on the same rows do not bring back the
    models that they had. The artifact is a ``model``; ``DeployModelOperator`` deploys it, with ``canary_percent=100``
    for all requests at once.

    Args:
        model_name: Name of the served fleet. (templated)
        segments: Keys of the segments; None for all of ``model``. (templated)
        model: Output of ``TrainFleetOperator``. (templated)
        version: Number of an earlier version, instead of ``model``. (templated)
        **kwargs: As :class:`~airflow_hops.operators.base.HopsOperator`.
    """

    entry = "airflow_hops.extensions.fleet.ml.selection:run"
    output_kind = "model"
    param_arguments = ("model_name", "segments", "version")
    input_arguments = ("model",)
    template_fields: Sequence[str] = (*HopsOperator.template_fields, "model_name", "segments", "model", "version")
    operator_extra_links = (MODELS_LINK, LINEAGE_LINK)
    cacheable: ClassVar[bool] = False  # it depends on what serves

    def __init__(
        self,
        *,
        model_name: ModelName,
        segments: Sequence[str] | None = None,
        model: Any = None,
        version: Version | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.model_name = model_name
        self.segments = segments
        self.model = model
        self.version = version
        self.check_arguments(SelectSegmentsOperator)
        if (model is None) == (version is None):
            raise BadArgument(f"SelectSegmentsOperator {self.task_id!r}: expected either model or version")
        if version is not None and segments is None:
            raise BadArgument(
                f"SelectSegmentsOperator {self.task_id!r}: version needs segments; RollbackModelOperator takes a whole "
                "fleet back"
            )


@experimental
class FleetSkewOperator(HopsOperator):
    """Finds segments of a served fleet whose requests differ from their training rows.

    It compares the requests that the server captured since the task's last run with the statistics that were kept with
    the champion, a test for each segment and feature. The task is skipped while no version serves. If segments drifted,
    the event of the task's asset has their keys as ``segments`` in its extra.

    The artifact ``fleet_skew`` holds ``findings.json``; its properties name the segments.

    Args:
        model_name: Name of the served fleet. (templated)
        captured: Output of ``IngestOperator``: captured requests of a topic, instead of the captured files. (templated)
        false_discoveries: Bound on the expected share of unchanged ones among the findings.
        min_rows: Captured rows below which a segment is not tested.
        **kwargs: As :class:`~airflow_hops.operators.base.HopsOperator`.
    """

    entry = "airflow_hops.extensions.fleet.ml.skew:run"
    output_kind = "fleet_skew"
    param_arguments = ("model_name", "false_discoveries", "min_rows")
    input_arguments = ("captured",)
    template_fields: Sequence[str] = (*HopsOperator.template_fields, "model_name", "captured")
    operator_extra_links = (MODELS_LINK, LINEAGE_LINK)
    cacheable: ClassVar[bool] = False  # captured rows are not among the inputs

    def __init__(
        self,
        *,
        model_name: ModelName,
        captured: Any = None,
        false_discoveries: Probability = 0.05,
        min_rows: Count = 50,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.model_name = model_name
        self.captured = captured
        self.false_discoveries = false_discoveries
        self.min_rows = min_rows
        self.check_arguments(FleetSkewOperator)

    def run_step(self, hook: RuntimeHook, context: Context) -> StepResult:
        """Runs the step; skips the task while no version of the model serves.

        Raises:
            AirflowSkipException: no version serves yet.
            BadInput: the model was never deployed, and no DAG deploys it.
        """
        skip_until_served(hook.store, self.model_name, context)
        return super().run_step(hook, context)

    def _announce(self, context: Context, artifact: Artifact) -> None:
        super()._announce(context, artifact)
        if self._asset is not None:
            event = context["outlet_events"][self._asset]
            event.extra = {**event.extra, "segments": list(FleetSkewProperties.of(artifact).segments)}
