"""The frameworks that are supported without an extension."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from airflow_hops.core.contract.artifacts import BadInput
from airflow_hops.core.contract.target import REGRESSION, Target
from airflow_hops.ml.models.frameworks import Framework
from airflow_hops.ml.models.onnx_converters import (
    Graph,
    convert_boosted_trees,
    convert_scikit_learn,
    convert_spark,
    convert_torch,
)
from airflow_hops.ml.models.trained_models import Sample, rows_for_torch, spark_output, spark_session


class ScikitLearn(Framework):
    """scikit-learn: estimators and pipelines, also with boosted trees within."""

    package = "sklearn"
    distributions: ClassVar[tuple[str, ...]] = ("scikit-learn", "skl2onnx")

    def owns(self, model: Any) -> bool:
        """Returns whether an object is an estimator."""
        return super().owns(model) and hasattr(model, "fit")

    def predict(self, model: Any, sample: Sample, target: Target) -> Any:
        """Returns the model's own predictions for rows."""
        if not hasattr(model, "predict_proba") and not hasattr(model, "fit"):
            return self.predict_booster(model, sample)
        if target.problem == REGRESSION:
            if hasattr(model, "predict_proba"):
                raise BadInput(f"{type(model).__name__} is a classifier, but the problem is {REGRESSION}")
            return model.predict(sample.rows)
        if not hasattr(model, "predict_proba"):
            raise BadInput(
                f"{type(model).__name__} has no method predict_proba, and the problem is {target.problem}; wrap it in "
                "sklearn.calibration.CalibratedClassifierCV, or choose an estimator that gives probabilities"
            )
        numbers = list(range(len(target.classes or ("0", "1"))))
        classes = list(np.asarray(getattr(model, "classes_", numbers)).tolist())
        if classes != numbers:
            raise BadInput(
                f"{type(model).__name__} knows the classes {classes}; expected their numbers, {numbers}: the labels of "
                f"the examples as they are, with every class in training"
            )
        return model.predict_proba(sample.rows)

    def predict_booster(self, model: Any, sample: Sample) -> Any:
        """Returns the predictions of a model that is not an estimator."""
        if not hasattr(model, "predict"):
            raise BadInput(f"{type(model).__name__} has no method predict")
        return model.predict(sample.rows)

    def convert(self, model: Any, sample: Sample, target: Target) -> Graph:
        """Returns the model as an ONNX graph."""
        return convert_scikit_learn(model, sample, target)


class LightGbm(ScikitLearn):
    """LightGBM: a ``Booster``, or an estimator."""

    package = "lightgbm"
    distributions: ClassVar[tuple[str, ...]] = ("lightgbm", "onnxmltools")

    def owns(self, model: Any) -> bool:
        """Returns whether an object is a model of the library."""
        return Framework.owns(self, model)

    def convert(self, model: Any, sample: Sample, target: Target) -> Graph:
        """Returns the model as an ONNX graph."""
        if hasattr(model, "steps"):  # a Pipeline
            return super().convert(model, sample, target)
        return convert_boosted_trees(model, sample, self.package)


class XgBoost(LightGbm):
    """XGBoost: a ``Booster``, or an estimator."""

    package = "xgboost"
    distributions: ClassVar[tuple[str, ...]] = ("xgboost-cpu", "xgboost", "onnxmltools")

    def predict_booster(self, model: Any, sample: Sample) -> Any:
        """Returns the predictions of a ``Booster``."""
        import xgboost

        names = None if hasattr(sample.rows, "columns") else model.feature_names
        return model.predict(xgboost.DMatrix(sample.rows, feature_names=names))


class Torch(Framework):
    """PyTorch: a ``torch.nn.Module``."""

    package = "torch"
    distributions = ("torch",)

    def predict(self, model: Any, sample: Sample, target: Target) -> Any:
        """Returns the model's own predictions for rows."""
        import torch

        model.eval()
        with torch.no_grad():
            answers = model(rows_for_torch(model, sample.matrix))
        if isinstance(answers, Mapping):
            return {name: values.cpu().numpy() for name, values in answers.items()}
        return answers if isinstance(answers, list | tuple) else answers.cpu().numpy()

    def convert(self, model: Any, sample: Sample, target: Target) -> Graph:
        """Returns the model as an ONNX graph."""
        return convert_torch(model, sample)


class SparkMl(Framework):
    """Spark ML: a ``PipelineModel``, or another model whose session still runs."""

    package = "pyspark"
    distributions = ("pyspark", "onnxmltools")
    takes_frame = True

    def owns(self, model: Any) -> bool:
        """Returns whether an object is a fitted model."""
        return super().owns(model) and hasattr(model, "transform")

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
        session = spark_session()
        scored = model.transform(session.createDataFrame(sample.rows))
        output = spark_output(target)
        if output not in scored.columns:
            raise BadInput(
                f"{type(stages[-1]).__name__} gives no {output}, and the problem is {target.problem}; choose another "
                "last stage"
            )
        answers = [row[0] for row in scored.select(output).collect()]
        return np.stack([value.toArray() for value in answers]) if output == "probability" else np.asarray(answers)

    def convert(self, model: Any, sample: Sample, target: Target) -> Graph:
        """Returns the model as an ONNX graph."""
        return convert_spark(model, sample, target)


def _output_column(stage: Any) -> str | None:
    result = stage.getOrDefault("outputCol") if stage.hasParam("outputCol") else None
    return None if result is None else str(result)
