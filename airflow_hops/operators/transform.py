"""Preprocessing of examples, by one TensorFlow graph in Spark executors."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_hops.hooks.runtime import Launcher, RuntimeHook
from airflow_hops.launchers.spark import SparkLauncher
from airflow_hops.operators.base import HopsOperator
from airflow_hops.operators.links import DataLink, LineageLink

if TYPE_CHECKING:
    from airflow.sdk import Context


class TransformOperator(HopsOperator):
    """Runs a preprocessing function over every split of ``examples``, on Spark.

    The artifact ``transformed_examples`` holds ``<split>/*.parquet`` and ``<split>/*.tfrecord.gz``, the graph in
    ``transform_graph/``, which becomes part of the model, ``features.json`` and ``constants.json``.

    Args:
        preprocess: ``module:function`` of ``preprocess(features, constants)``, beside the DAG file. (templated)
        examples: The output of ``PrepareOperator``. (templated)
        statistics: The output of ``StatisticsOperator``; the constants are those of its split ``train``. (templated)
        schema: The output of ``SchemaOperator``: names and types of the raw features. (templated)
        extra_inputs: Raw features, or the time, that a served model takes besides those that it uses, so that they are
            captured with the requests: for example the time, for ``time_feature`` of ``SkewOperator``. (templated)
        spark_conn_id: The Spark connection. (templated)
        conf: Spark properties. (templated)
        **kwargs: As :class:`~airflow_hops.operators.base.HopsOperator`.
    """

    entry = "airflow_hops.runtime.transform.stage:run"
    output_kind = "transformed_examples"
    operator_extra_links = (DataLink(), LineageLink())
    template_fields: Sequence[str] = (
        *HopsOperator.template_fields,
        "preprocess",
        "examples",
        "statistics",
        "schema",
        "extra_inputs",
        "spark_conn_id",
        "conf",
    )

    def __init__(
        self,
        *,
        preprocess: str,
        examples: Any,
        statistics: Any,
        schema: Any,
        extra_inputs: Sequence[str] = (),
        spark_conn_id: str = "spark_default",
        conf: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.preprocess = preprocess
        self.examples = examples
        self.statistics = statistics
        self.schema = schema
        self.extra_inputs = extra_inputs
        self.spark_conn_id = spark_conn_id
        self.conf = conf

    def step_inputs(self) -> Mapping[str, Any]:
        """Examples, statistics and schema."""
        return {"examples": self.examples, "statistics": self.statistics, "schema": self.schema}

    def step_params(self, context: Context) -> dict[str, Any]:
        """The preprocessing function's name, and what else a model takes."""
        return {"preprocess": self.preprocess, "extra_inputs": list(self.extra_inputs)}

    def step_cache_key_parts(self, hook: RuntimeHook) -> dict[str, str]:
        """The Spark properties: some change what an expression gives (``spark.sql.ansi.enabled``)."""
        return {"conf": json.dumps(dict(self.conf or {}), sort_keys=True)}

    def launcher(self, hook: RuntimeHook) -> Launcher:
        """Spark, as the connection says."""
        return SparkLauncher(hook.settings.runtime, self.spark_conn_id, dict(self.conf or {}), hook.warm_start())
