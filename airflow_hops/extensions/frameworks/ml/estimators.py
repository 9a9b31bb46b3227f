"""scikit-learn, LightGBM and XGBoost."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from airflow_hops.core.artifacts.target import REGRESSION, Target
from airflow_hops.core.errors import BadInput
from airflow_hops.core.serving_api import tensors
from airflow_hops.extensions.frameworks.ml.booster_fixes import BoosterInputs, convertible, correct_classes
from airflow_hops.extensions.frameworks.ml.converter_fixes import (
    correct_texts,
    correct_unknown_categories,
    impute,
    imputed_shape,
    missing_directions,
    models_within,
    name_apart,
    round_thresholds,
    scale_in_double,
    steps_of,
    text_options,
    unknown_categories,
)
from airflow_hops.extensions.frameworks.ml.estimator_rows import differing_step, estimator_rows
from airflow_hops.extensions.frameworks.ml.onnx_converters import (
    OPSET,
    Graph,
    OnnxFramework,
    converting,
    given_inputs,
    imported,
)
from airflow_hops.extensions.frameworks.ml.scikit_learn import UntrustedTypes, write_skops
from airflow_hops.extensions.frameworks.serving.skops_files import load_estimator
from airflow_hops.ml.models.frameworks import Framework, NotExportable, Written
from airflow_hops.ml.models.samples import Sample
from airflow_hops.ml.training.tables import SplitTable
from airflow_hops.serving.models.model_signature import MATRIX_INPUT, EstimatorInputs

_BOOSTER = "model.json"


class ScikitLearn(OnnxFramework):
    """scikit-learn: estimators and pipelines, also with boosted trees."""

    package = "sklearn"
    distributions: ClassVar[tuple[str, ...]] = ("scikit-learn", "skl2onnx")

    def owns(self, model: object) -> bool:
        """Returns whether an object is an estimator."""
        return super().owns(model) and hasattr(model, "fit")

    def rows(self, model: object, table: SplitTable) -> tuple[Any, Sequence[str]]:
        """Returns rows with the columns that a model was fitted on, in their order."""
        return estimator_rows(model, table)

    def formats(self, model: object) -> Sequence[str]:
        """Returns the formats of ONNX graphs and of a single estimator."""
        return ("onnx",) if isinstance(model, Mapping) else ("onnx", "skops")

    def write(self, model: object, folder: Path, format: str, sample: Sample, target: Target) -> Written:
        """Writes the model's graph, or the estimator itself."""
        if format == "onnx":
            return super().write(model, folder, format, sample, target)
        try:
            write_skops(model, folder)
        except UntrustedTypes as error:
            raise NotExportable(str(error), "use another step") from error
        return Written(sample.inputs)

    def save(self, model: object, folder: Path) -> None:
        """Writes the estimator with skops."""
        try:
            write_skops(model, folder)
        except UntrustedTypes as error:
            raise BadInput(f"{error}, so that no training can continue from it; leave continue_from out") from error

    def load(self, folder: Path, model: object = None) -> Any:
        """Returns the estimator."""
        return load_estimator(folder / "model.skops")

    def inexact_part(self, model: object, sample: Sample) -> str | None:
        """Returns the first step of a Pipeline whose graph differs."""
        return differing_step(model, sample, self.graph_of) if hasattr(model, "fit") else None

    def predict(self, model: Any, sample: Sample, target: Target) -> object:
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
                f"{type(model).__name__} was trained on the classes {classes}; expected their numbers, {numbers}: the "
                "labels of the examples as they are, with every class in training"
            )
        return model.predict_proba(sample.rows)

    def classes(self, model: Any, sample: Sample) -> Any:
        """Returns the classes, as ``predict`` of a classifier."""
        return model.predict(sample.rows) if hasattr(model, "predict_proba") else None

    def predict_booster(self, model: object, sample: Sample) -> object:
        """Returns the predictions of a model that is not an estimator."""
        if not hasattr(model, "predict"):
            raise BadInput(f"{type(model).__name__} has no method predict")
        return model.predict(sample.rows)

    def convert(self, model: object, sample: Sample, target: Target) -> Graph:
        """Returns the model as an ONNX graph."""
        from sklearn.impute import SimpleImputer
        from sklearn.preprocessing import MaxAbsScaler, RobustScaler, StandardScaler

        skl2onnx = imported("skl2onnx", "sklearn")
        types = importlib.import_module("skl2onnx.common.data_types")
        _register_boosters(model)
        inputs = _inputs_of(model, sample)
        values = given_inputs(inputs, types)
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
        with converting(model, steps), missing_directions():
            graph = skl2onnx.convert_sklearn(
                model,
                initial_types=values,
                options=options,
                target_opset={"": OPSET, "ai.onnx.ml": 3},
                custom_conversion_functions={**in_double, SimpleImputer: impute},
                custom_shape_calculators={SimpleImputer: imputed_shape},
            )
        correct_texts(graph.graph)
        correct_unknown_categories(graph.graph, unknown_categories(model))
        graph = name_apart(graph, [name for name, _ in values])
        return Graph(graph.SerializeToString(), inputs, {"": str(graph.graph.output[-1].name)})


class LightGbm(ScikitLearn):
    """LightGBM: a ``Booster``, or an estimator."""

    package = "lightgbm"
    distributions: ClassVar[tuple[str, ...]] = ("lightgbm", "onnxmltools")

    def owns(self, model: object) -> bool:
        """Returns whether an object is a model of the library."""
        return Framework.owns(self, model)

    def formats(self, model: object) -> Sequence[str]:
        """Returns only the format of ONNX graphs."""
        return ("onnx",)

    def save(self, model: Any, folder: Path) -> None:
        """Writes the ``Booster`` of a model."""
        booster = model.get_booster() if hasattr(model, "get_booster") else getattr(model, "booster_", model)
        booster.save_model(str(folder / _BOOSTER))

    def load(self, folder: Path, model: object = None) -> Any:
        """Returns the ``Booster``."""
        return importlib.import_module(self.package).Booster(model_file=str(folder / _BOOSTER))

    def convert(self, model: object, sample: Sample, target: Target) -> Graph:
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
        with converting(model), convertible(model) as converted:
            types_of_inputs = [(MATRIX_INPUT, types.FloatTensorType([None, width]))]
            graph = getattr(onnxmltools, f"convert_{self.package}")(converted, initial_types=types_of_inputs, **options)
        for node in graph.graph.node:
            correct_classes(node, model)
        BoosterInputs.of(model).correct(graph)
        inputs = EstimatorInputs({MATRIX_INPUT: tensors.BY_NAME["float"]}, width)
        return Graph(graph.SerializeToString(), inputs, {"": str(graph.graph.output[-1].name)})


class XgBoost(LightGbm):
    """XGBoost: a ``Booster``, or an estimator."""

    package = "xgboost"
    distributions: ClassVar[tuple[str, ...]] = ("xgboost-cpu", "xgboost", "onnxmltools")

    def predict_booster(self, model: Any, sample: Sample) -> object:
        """Returns the predictions of a ``Booster``."""
        import xgboost

        names = None if hasattr(sample.rows, "columns") else model.feature_names
        return model.predict(xgboost.DMatrix(sample.rows, feature_names=names))


def _inputs_of(model: object, sample: Sample) -> EstimatorInputs:
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
    """Raises NotExportable for boosters of XGBoost that its converter does not know, by their names in messages."""
    for name, model in models:
        if type(model).__module__.startswith("xgboost"):
            booster = model.get_booster() if hasattr(model, "get_booster") else model
            kind = json.loads(booster.save_config())["learner"]["gradient_booster"]["name"]
            if kind != "gbtree":
                other = "dropout of LightGBM's boosting='dart'" if kind == "dart" else "a linear model of scikit-learn"
                raise NotExportable(
                    f"{name} has booster={kind!r}, which does not convert to ONNX", f"use booster='gbtree', or {other}"
                )


def _register_boosters(model: object) -> None:
    """Registers converters for the boosted trees of a pipeline with skl2onnx."""
    families = {type(step).__module__.partition(".")[0] for _, step in steps_of(model)}
    for family in families & {"lightgbm", "xgboost"}:
        imported("onnxmltools", family)
        operators = importlib.import_module(f"onnxmltools.convert.{family}.operator_converters")
        skl2onnx = importlib.import_module("skl2onnx")
        shapes = importlib.import_module("skl2onnx.common.shape_calculator")
        module = importlib.import_module(family)
        names = {
            "lightgbm": ("LightGbm", "LGBMClassifier", "LGBMRegressor"),
            "xgboost": ("XGBoost", "XGBClassifier", "XGBRegressor"),
        }[family]
        converter = getattr(operators, names[0]).__dict__.get(f"convert_{family}")
        for name in names[1:]:
            is_classifier = name.endswith("Classifier")
            calculate = "linear_classifier" if is_classifier else "linear_regressor"
            skl2onnx.update_registered_converter(
                getattr(module, name),
                f"{names[0]}{name}",
                getattr(shapes, f"calculate_{calculate}_output_shapes"),
                BoosterInputs.converter(converter),
                options={"nocl": [True, False], "zipmap": [True, False, "columns"]} if is_classifier else None,
            )
