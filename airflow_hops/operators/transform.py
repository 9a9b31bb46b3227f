"""Operator that preprocesses examples with one TensorFlow graph, on this machine or on Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_hops.core.errors import BadInput
from airflow_hops.core.lineage import CONSTANTS
from airflow_hops.core.models.continued_models import champion_of_run, constants_of
from airflow_hops.operators.links import DATA_LINK, LINEAGE_LINK
from airflow_hops.operators.spark import SparkOperator
from airflow_hops.runner.arguments import FunctionName, ModelName

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_hops.core.steps.protocol import StepSpec
    from airflow_hops.runner.runtime import RuntimeHook


class TransformOperator(SparkOperator):
    """Runs a preprocessing function over every split of ``examples``, on this machine or on Spark.

    The artifact ``transformed_examples`` holds ``<split>/*.parquet`` and ``<split>/*.tfrecord.gz``, the graph in
    ``transform_graph/``, which becomes part of the model, ``features.json`` and ``constants.json``.

    Args:
        preprocess: ``module:function`` of ``preprocess(features, constants)``, beside the DAG file. (templated)
        examples: The output of ``PrepareOperator``. (templated)
        statistics: The output of ``StatisticsOperator``; the constants are taken from its split ``train``. (templated)
        schema: The output of ``SchemaOperator``: names and types of the raw features. (templated)
        extra_inputs: Raw features, or the time, that the served model takes without using them, so that they are
            captured with requests: for example the time, for ``time_feature`` of ``SkewOperator``. (templated)
        continue_from: Name of a served model, as of :class:`~airflow_hops.operators.TrainOperator`: the constants are
            then those of its champion, if there is one, so that the outputs mean the same. (templated)
        **kwargs: As :class:`~airflow_hops.operators.spark.SparkOperator`.
    """

    entry = "airflow_hops.ml.transform.stage:run"
    functions: ClassVar[Mapping[str, int]] = {"preprocess": 2}
    output_kind = "transformed_examples"
    param_arguments = ("preprocess", "extra_inputs")
    input_arguments = ("examples", "statistics", "schema")
    template_fields: Sequence[str] = (
        *SparkOperator.template_fields, *input_arguments, "preprocess", "extra_inputs", "continue_from"
    )  # fmt: skip
    operator_extra_links = (DATA_LINK, LINEAGE_LINK)

    def __init__(
        self,
        *,
        preprocess: FunctionName,
        examples: Any,
        statistics: Any,
        schema: Any,
        extra_inputs: Sequence[str] = (),
        continue_from: ModelName | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.preprocess = preprocess
        self.examples = examples
        self.statistics = statistics
        self.schema = schema
        self.extra_inputs = extra_inputs
        self.continue_from = continue_from
        self.check_arguments(TransformOperator)

    def build_spec(self, hook: RuntimeHook, context: Context) -> StepSpec:
        """Returns the step's spec, whose input ``constants`` are the statistics of the champion's transform, if any."""
        spec = super().build_spec(hook, context)
        champion = champion_of_run(hook.store, spec.producer, self.continue_from) if self.continue_from else None
        if champion is None:
            return spec
        model, version = champion
        try:
            return replace(spec, inputs={**spec.inputs, CONSTANTS: (constants_of(hook.store, model),)})
        except BadInput as error:
            raise BadInput(
                f"continue_from is {self.continue_from!r}, but the constants of its version {version} are unknown: "
                f"{error}. Deploy another version and start a new run, or leave continue_from out"
            ) from error
