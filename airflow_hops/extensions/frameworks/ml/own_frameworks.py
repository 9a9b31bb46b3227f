"""Frameworks that are supported without an extension."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar

import numpy as np

from airflow_hops.core.contract.artifacts import BadInput
from airflow_hops.core.contract.target import REGRESSION, Target
from airflow_hops.core.serving_api import tensors
from airflow_hops.extensions.frameworks.ml.converter_fixes import (
    BoosterInputs,
    correct_spark,
    correct_texts,
    correct_unknown_categories,
    missing_directions,
    models_within,
    name_apart,
    numbers_missing_alone,
    refuse_negative_indices,
    round_thresholds,
    scale_in_double,
    steps_of,
    text_options,
    unknown_categories,
)
from airflow_hops.extensions.frameworks.ml.onnx_converters import Graph, NotConvertible, converting, imported
from airflow_hops.ml.models.frameworks import Framework
from airflow_hops.ml.models.trained_models import Sample, rows_for_torch, spark_output, spark_session
from airflow_hops.serving.models.estimator_signature import MATRIX_INPUT, EstimatorInputs

_OPSET = 18
"""Opset of the graphs, which onnxruntime has supported since 2023."""


class ScikitLearn(Framework):
    """scikit-learn: estimators and pipelines, also with boosted trees."""

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
        from sklearn.preprocessing import MaxAbsScaler, RobustScaler, StandardScaler

        skl2onnx = imported("skl2onnx", "sklearn")
        types = importlib.import_module("skl2onnx.common.data_types")
        _register_boosters(model)
        inputs = _inputs_of(model, sample)
        values = _given(inputs, types)
        # Scalers divide with scikit-learn's precision: otherwise a value may pass a threshold.
        is_single = {column.dtype for column in sample.columns() if column.dtype.kind != "O"} <= {np.dtype("float32")}
        scalers = MaxAbsScaler, RobustScaler, StandardScaler
        in_double = {} if is_single else dict.fromkeys(scalers, scale_in_double)
        options: dict[Any, Any] = {step: {"div": "div"} for step in scalers} | text_options(model)
        if target.problem != REGRESSION:
            options[id(model)] = {"zipmap": False}
        _check_boosters((f"step {path!r}", step) for path, step in steps_of(model))
        for each in models_within(model):
            round_thresholds(each)
        steps = [(f"step {path!r}", step) for path, step in steps_of(model) if path]
        with converting(model, steps), missing_directions(), _numbered_features(step for _, step in steps_of(model)):
            graph = skl2onnx.convert_sklearn(
                model,
                initial_types=values,
                options=options,
                target_opset={"": _OPSET, "ai.onnx.ml": 3},
                custom_conversion_functions=in_double,
            )
        correct_texts(graph.graph)
        correct_unknown_categories(graph.graph, unknown_categories(model))
        graph = name_apart(graph, [name for name, _ in values])
        return Graph(graph.SerializeToString(), inputs, {"": str(graph.graph.output[-1].name)})


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
        onnxmltools = imported("onnxmltools", self.package)
        types = importlib.import_module("onnxmltools.convert.common.data_types")
        _check_boosters([(type(model).__name__, model)])
        width = sample.matrix.shape[1]
        options: dict[str, Any] = {"target_opset": 15}
        if self.package == "lightgbm":
            options["zipmap"] = False
        with converting(model), _numbered_features([model]), numbers_missing_alone(model):
            types_of_inputs = [(MATRIX_INPUT, types.FloatTensorType([None, width]))]
            graph = getattr(onnxmltools, f"convert_{self.package}")(model, initial_types=types_of_inputs, **options)
        BoosterInputs.of(model).correct(graph)
        inputs = EstimatorInputs({MATRIX_INPUT: tensors.BY_NAME["float"]}, width)
        return Graph(graph.SerializeToString(), inputs, {"": str(graph.graph.output[-1].name)})


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

        model = _uncompiled(model).eval()
        try:
            with torch.no_grad():
                answers = model(rows_for_torch(model, sample.matrix))
        except RuntimeError as error:  # also of shapes and dtypes
            raise ValueError(str(error)) from error
        if isinstance(answers, Mapping):
            return {name: values.cpu().numpy() for name, values in answers.items()}
        return answers if isinstance(answers, list | tuple) else answers.cpu().numpy()

    def convert(self, model: Any, sample: Sample, target: Target) -> Graph:
        """Returns the model as an ONNX graph."""
        import torch

        content = io.BytesIO()
        model = _uncompiled(model)
        rows = rows_for_torch(model, sample.matrix[:2])
        with torch.no_grad():
            result = model(rows)
        names = {name: f"output/{name}" for name in result} if isinstance(result, Mapping) else {"": "output"}

        class Served(torch.nn.Module):  # type: ignore[misc]
            """Takes float32, as requests hold it, and returns outputs in order: a graph does not know their names."""

            def __init__(self) -> None:
                super().__init__()
                self.model = model

            def forward(self, matrix: Any) -> Any:
                result = self.model(matrix.to(rows.dtype))
                return tuple(result[name] for name in names) if isinstance(result, Mapping) else result

        axes = {name: {0: "batch"} for name in (MATRIX_INPUT, *names.values())}
        with converting(model):
            torch.onnx.export(
                Served().eval(),
                (rows.float(),),
                content,
                input_names=[MATRIX_INPUT],
                output_names=list(names.values()),
                dynamic_axes=axes,
                opset_version=_OPSET,
                dynamo=False,
            )
        graph = importlib.import_module("onnx").load_from_string(content.getvalue())
        tables = [name for name, module in model.named_modules() if isinstance(module, torch.nn.Embedding)]
        refuse_negative_indices(graph.graph, [f"{name}.weight" for name in tables])
        inputs = EstimatorInputs({MATRIX_INPUT: tensors.BY_NAME["float"]}, sample.matrix.shape[1])
        return Graph(graph.SerializeToString(), inputs, names)


def _uncompiled(model: Any) -> Any:
    """Returns a module without ``torch.compile``, also in the modules within it; ONNX needs its Python code."""
    model = getattr(model, "_orig_mod", model)
    model._compiled_call_impl = None  # set by model.compile()
    for name, part in model.named_children():
        setattr(model, name, _uncompiled(part))
    return model


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
        onnxmltools = imported("onnxmltools", "Spark ML")
        types = importlib.import_module("onnxmltools.convert.common.data_types")
        values = _given(sample.inputs, types)
        stages = [(f"stage {number}", stage) for number, stage in enumerate(getattr(model, "stages", ()))]
        with converting(model, stages), contextlib.redirect_stdout(io.StringIO()):  # it prints coefficients
            session = spark_session()
            graph = onnxmltools.convert_sparkml(model, "model", values, target_opset=15, spark_session=session)
        correct_spark(graph.graph)
        correct_unknown_categories(graph.graph, unknown_categories(model))
        (output,) = [number for number, of in enumerate(graph.graph.output) if of.name == spark_output(target)]
        graph = name_apart(graph, [name for name, _ in values])
        return Graph(graph.SerializeToString(), sample.inputs, {"": str(graph.graph.output[output].name)})


def _output_column(stage: Any) -> str | None:
    result = stage.getOrDefault("outputCol") if stage.hasParam("outputCol") else None
    return None if result is None else str(result)


def _given(inputs: EstimatorInputs, types: Any) -> list[tuple[str, Any]]:
    """Returns the inputs in the converter's own types."""
    by_type = {"float": types.FloatTensorType, "int64": types.Int64TensorType, "string": types.StringTensorType}
    return [(name, by_type[kind.name]([None, inputs.width or 1])) for name, kind in inputs.columns.items()]


def _inputs_of(model: Any, sample: Sample) -> EstimatorInputs:
    """Returns columns by name if the model selects them by name; else one matrix, of numbers or of strings."""
    first = model
    while hasattr(first, "steps"):
        first = first.steps[0][1]
    kinds = set(sample.inputs.columns.values())
    is_text = kinds == {tensors.STRING}
    if sample.inputs.width is not None or hasattr(first, "transformers") or (tensors.STRING in kinds and not is_text):
        return sample.inputs
    kind = tensors.STRING if is_text else tensors.BY_NAME["float"]
    return EstimatorInputs({MATRIX_INPUT: kind}, len(sample.inputs.columns))


def _check_boosters(models: Iterable[tuple[str, Any]]) -> None:
    """Raises NotConvertible for boosters of XGBoost that its converter does not know, by their names in messages."""
    for name, model in models:
        if type(model).__module__.startswith("xgboost"):
            booster = model.get_booster() if hasattr(model, "get_booster") else model
            kind = json.loads(booster.save_config())["learner"]["gradient_booster"]["name"]
            if kind != "gbtree":
                other = "dropout of LightGBM's boosting='dart'" if kind == "dart" else "a linear model of scikit-learn"
                raise NotConvertible(
                    f"{name} has booster={kind!r}, which does not convert to ONNX", f"use booster='gbtree', or {other}"
                )


def _register_boosters(model: Any) -> None:
    """Registers converters for the boosted trees of a pipeline with skl2onnx."""
    families = {type(step).__module__.partition(".")[0] for _, step in steps_of(model)}
    for family in families & {"lightgbm", "xgboost"}:
        imported("onnxmltools", family)
        operators = importlib.import_module(f"onnxmltools.convert.{family}.operator_converters")
        skl2onnx = importlib.import_module("skl2onnx")
        shapes = importlib.import_module("skl2onnx.common.shape_calculator")
        module = importlib.import_module(family)
        of = {
            "lightgbm": ("LightGbm", "LGBMClassifier", "LGBMRegressor"),
            "xgboost": ("XGBoost", "XGBClassifier", "XGBRegressor"),
        }[family]
        converter = getattr(operators, of[0]).__dict__.get(f"convert_{family}")
        for name in of[1:]:
            is_classifier = name.endswith("Classifier")
            calculate = "linear_classifier" if is_classifier else "linear_regressor"
            skl2onnx.update_registered_converter(
                getattr(module, name),
                f"{of[0]}{name}",
                getattr(shapes, f"calculate_{calculate}_output_shapes"),
                BoosterInputs.converter(converter),
                options={"nocl": [True, False], "zipmap": [True, False, "columns"]} if is_classifier else None,
            )


@contextlib.contextmanager
def _numbered_features(models: Iterable[Any]) -> Iterator[None]:
    """Renames the features of XGBoost's models to ``f0``, ``f1``, …, the only names that its converter reads."""
    ours = [model for model in models if type(model).__module__.startswith("xgboost")]
    boosters = [model.get_booster() if hasattr(model, "get_booster") else model for model in ours]
    names = [booster.feature_names for booster in boosters]
    for booster in boosters:
        booster.feature_names = [f"f{number}" for number in range(booster.num_features())]
    try:
        yield
    finally:
        for booster, before in zip(boosters, names, strict=True):
            booster.feature_names = before
