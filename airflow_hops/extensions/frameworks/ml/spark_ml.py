"""Spark ML."""

from __future__ import annotations

import contextlib
import importlib
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from airflow_hops.core.artifacts.target import REGRESSION, Target
from airflow_hops.core.errors import BadInput
from airflow_hops.extensions.frameworks.ml.converter_fixes import (
    correct_spark,
    correct_unknown_categories,
    name_apart,
    unknown_categories,
)
from airflow_hops.extensions.frameworks.ml.onnx_converters import (
    Graph,
    OnnxFramework,
    converting,
    given_inputs,
    imported,
)
from airflow_hops.ml.models.samples import Sample
from airflow_hops.ml.training.tables import SplitTable

if TYPE_CHECKING:
    from pyspark.ml import Transformer
    from pyspark.sql import SparkSession


class SparkMl(OnnxFramework):
    """Spark ML: a ``PipelineModel``, or another model whose session still runs."""

    package = "pyspark"
    distributions = ("pyspark", "onnxmltools")

    def owns(self, model: object) -> bool:
        """Returns whether an object is a fitted model."""
        return super().owns(model) and hasattr(model, "transform")

    def rows(self, model: object, table: SplitTable) -> tuple[Any, Sequence[str]]:
        """Returns a data frame of all features, which it takes by name."""
        return table.frame(), list(table.specs)

    def predict(self, model: Any, sample: Sample, target: Target) -> Any:
        """Returns the model's own predictions for rows."""
        if sample.inputs.width is not None:
            raise BadInput("the sample is a matrix; a model of Spark ML takes columns by name: expected a data frame")
        stages = list(getattr(model, "stages", (model,)))
        label, indexed = stages[-1].getOrDefault("labelCol"), {_output_column(stage) for stage in stages[:-1]}
        if target.problem != REGRESSION and label in indexed:
            raise BadInput(
                f"the pipeline makes the label {label!r} itself, and may number the classes differently from the "
                f"examples ({', '.join(target.classes or ('0', '1'))}); train on the labels as they are"
            )
        session = _session()
        scored = model.transform(session.createDataFrame(sample.rows))
        output = _output_of(target)
        if output not in scored.columns:
            raise BadInput(
                f"{type(stages[-1]).__name__} gives no {output}, and the problem is {target.problem}; choose another "
                "last stage"
            )
        answers = [row[0] for row in scored.select(output).collect()]
        return np.stack([value.toArray() for value in answers]) if output == "probability" else np.asarray(answers)

    def classes(self, model: Any, sample: Sample) -> Any:
        """Returns the classes that a model chooses, by its ``thresholds`` if it has any."""
        scored = model.transform(_session().createDataFrame(sample.rows)).select("prediction")
        return np.asarray([row[0] for row in scored.collect()])

    def convert(self, model: object, sample: Sample, target: Target) -> Graph:
        """Returns the model as an ONNX graph."""
        onnxmltools = imported("onnxmltools", "Spark ML")
        types = importlib.import_module("onnxmltools.convert.common.data_types")
        values = given_inputs(sample.inputs, types)
        stages = [(f"stage {number}", stage) for number, stage in enumerate(getattr(model, "stages", ()))]
        with converting(model, stages), contextlib.redirect_stdout(io.StringIO()):  # it prints coefficients
            session = _session()
            graph = onnxmltools.convert_sparkml(model, "model", values, target_opset=15, spark_session=session)
        correct_spark(graph.graph)
        correct_unknown_categories(graph.graph, unknown_categories(model))
        (output,) = [number for number, value in enumerate(graph.graph.output) if value.name == _output_of(target)]
        graph = name_apart(graph, [name for name, _ in values])
        return Graph(graph.SerializeToString(), sample.inputs, {"": str(graph.graph.output[output].name)})


def _output_column(stage: Transformer) -> str | None:
    result = stage.getOrDefault("outputCol") if stage.hasParam("outputCol") else None
    return None if result is None else str(result)


def _output_of(target: Target) -> str:
    """Returns the column of a Spark ML model's prediction, which is also the output of its graph."""
    return "prediction" if target.problem == REGRESSION else "probability"


def _session() -> SparkSession:
    """Returns the Spark session in which a Spark ML model was trained.

    Raises:
        BadInput: it was stopped.
    """
    from pyspark.sql import SparkSession

    session = SparkSession.getActiveSession()
    if session is None:
        raise BadInput(
            "the Spark session was stopped; keep it running, since the exported model is compared with the original"
        )
    return session
