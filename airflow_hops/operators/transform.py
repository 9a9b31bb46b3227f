"""Operator that preprocesses examples with one TensorFlow graph, on this machine or on Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from airflow_hops.arguments import FunctionName
from airflow_hops.operators.links import DataLink, LineageLink
from airflow_hops.operators.spark import SparkOperator


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
        **kwargs: As :class:`~airflow_hops.operators.spark.SparkOperator`.
    """

    entry = "airflow_hops.ml.stages.transform.stage:run"
    functions: ClassVar[Mapping[str, int]] = {"preprocess": 2}
    output_kind = "transformed_examples"
    param_arguments = ("preprocess", "extra_inputs")
    input_arguments = ("examples", "statistics", "schema")
    template_fields: Sequence[str] = (
        *SparkOperator.template_fields,
        "examples",
        "statistics",
        "schema",
        "preprocess",
        "extra_inputs",
    )
    operator_extra_links = (DataLink(), LineageLink())

    def __init__(
        self,
        *,
        preprocess: FunctionName,
        examples: Any,
        statistics: Any,
        schema: Any,
        extra_inputs: Sequence[str] = (),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.preprocess = preprocess
        self.examples = examples
        self.statistics = statistics
        self.schema = schema
        self.extra_inputs = extra_inputs
        self.check_arguments(TransformOperator)
