"""scikit-learn, LightGBM and XGBoost: rows that estimators take, and the step of a Pipeline that differs on some."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np

from airflow_hops.core.artifacts.target import REGRESSION, Target
from airflow_hops.core.errors import BadInput
from airflow_hops.core.processes.temporary_folders import temporary_folder
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
from airflow_hops.extensions.frameworks.ml.onnx_converters import (
    OPSET,
    Graph,
    OnnxFramework,
    converting,
    given_inputs,
    imported,
)
from airflow_hops.extensions.frameworks.ml.scikit_learn import UntrustedTypes, write_skops
from airflow_hops.extensions.frameworks.serving.formats import ONNX
from airflow_hops.extensions.frameworks.serving.skops_files import load_estimator
from airflow_hops.ml.models.frameworks import Framework, NotExportable, Written
from airflow_hops.ml.models.samples import Sample
from airflow_hops.ml.training.tables import SplitTable, plain_names
from airflow_hops.serving.models.formats import ModelOptions
from airflow_hops.serving.models.local import LocalServable
from airflow_hops.serving.models.model_signature import MATRIX_INPUT, SIGNATURE_FILE, EstimatorInputs, ModelSignature

GraphOf = Callable[[Any, Sample, Target], Graph]
_STEP_TOLERANCE = 1e-4

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


def estimator_rows(estimator: object, table: SplitTable) -> tuple[Any, Sequence[str]]:
    """Returns rows in the estimator's input format, and the features in the order of its columns.

    An estimator fitted on a data frame, or on data from :class:`SplitTable`, knows its features by name, and gets them
    in its own order. Any other gets them in the table's order.
    """
    names = [str(name) for name in getattr(estimator, "feature_names_in_", ())]
    has_vectors = table.names != list(table.specs)
    if names and not (has_vectors and names == table.names) and not _are_numbers(names, list(table.specs)):
        if has_vectors and set(names) <= set(table.names) and not set(names) <= set(table.specs):
            raise BadInput(
                f"{type(estimator).__name__} was trained on {len(names)} columns of frame(), not all "
                f"{len(table.names)} in their order, but a feature of several values stays one input when it serves; "
                "train it on matrix() of context.table(split, columns)"
            )
        return table.frame()[_in_order(names, list(table.specs), estimator)], names
    names = _booster_names(estimator)
    plain = plain_names(table.names)
    if names and not _are_numbers(names, plain) and names != plain:
        ordered = _in_order(names, plain, estimator)
        scalars = dict(zip(plain, table.names, strict=True))
        order = [scalars[name] for name in ordered]
        if set(order) - set(table.specs):
            raise BadInput(
                f"{type(estimator).__name__} was trained on features in the order {', '.join(names)}, but features of "
                f"several values stand together when it serves: {', '.join(plain)}; train it on matrix()"
            )
        return table.frame()[order].to_numpy("float32"), order
    width = getattr(estimator, "n_features_in_", None)
    if width is not None and int(width) != len(table.names):
        raise BadInput(
            f"{type(estimator).__name__} was trained on {width} columns, but the features are {len(table.names)}: "
            f"{', '.join(table.names)}; read what it is trained on with context.table(split, columns), or use frame(), "
            "whose columns have names"
        )
    return table.matrix(), list(table.specs)


def _in_order(names: list[str], there: list[str], estimator: object) -> list[str]:
    unknown = [name for name in names if name not in there]
    if unknown:
        raise BadInput(
            f"{type(estimator).__name__} was trained on {', '.join(map(repr, unknown))}, which requests to the served "
            f"model will lack: the features of the examples are {', '.join(there)}; make it in prepare() or in the "
            "transform, or in a Pipeline that is returned whole"
        )
    return names


def _booster_names(estimator: object) -> list[str]:
    """Returns the feature names of boosted trees, if they have any."""
    booster = estimator
    for attribute in ("booster_", "get_booster"):
        booster_of = getattr(estimator, attribute, None)
        booster = booster_of() if callable(booster_of) else booster_of if booster_of is not None else booster
    names = getattr(booster, "feature_name", None) or getattr(booster, "feature_names", None)
    return [str(name) for name in (names() if callable(names) else names) or ()]


def _are_numbers(names: Sequence[str], there: Sequence[str]) -> bool:
    """Returns whether names are columns numbered by a library (``Column_0``, ``f0``), and not features."""
    return not set(names) <= set(there) and all(
        name in (f"Column_{number}", f"f{number}", str(number)) for number, name in enumerate(names)
    )


def differing_step(model: Any, sample: Sample, graph_of: GraphOf) -> str | None:
    """Names the first step of a scikit-learn Pipeline whose graph differs on these rows; None if that is not known."""
    steps = getattr(model, "steps", None)
    if not steps:
        return type(model).__name__
    for number, (name, step) in enumerate(steps):
        described = f"step {name!r} ({type(step).__name__})"
        if number == len(steps) - 1:
            return described
        head = model[: number + 1]
        try:
            served = _transformed(head, sample, graph_of)
        except Exception:  # the head alone may fail to convert in any way
            return None
        try:
            trained = head.transform(sample.rows)
        except Exception:  # an estimator may refuse rows in any way
            return described if served is not None else None
        trained = np.asarray(trained.toarray() if hasattr(trained, "toarray") else trained, np.float64)
        if served is None or served.shape != trained.shape:
            return described
        scale = np.maximum(1, np.abs(trained))
        differs = ~((np.abs(served - trained) <= _STEP_TOLERANCE * scale) | (np.isnan(served) & np.isnan(trained)))
        if differs.any():
            column = int(np.flatnonzero(differs.any(axis=0))[0])
            inner = getattr(step, "output_indices_", {}).items()
            within = next((part for part, columns in inner if columns.start <= column < columns.stop), None)
            if within in getattr(step, "named_transformers_", {}):
                part = step.named_transformers_[within]
                return f"step '{name}.{within}' ({type(part).__name__})"
            return described
    return None


def _transformed(head: object, sample: Sample, graph_of: GraphOf) -> np.ndarray | None:
    """Runs the graph of the first steps of a Pipeline; None if it refuses the rows."""
    graph = graph_of(head, sample, Target("none", REGRESSION))
    with temporary_folder("export") as folder:
        (folder / ONNX.files[0]).write_bytes(graph.content)
        (folder / SIGNATURE_FILE).write_text(ModelSignature(graph.inputs, graph.inputs).to_json())
        servable = cast(LocalServable, ONNX.open("export", 1, folder, ModelOptions()))
        try:
            served = servable.predict(sample.arrays(graph.inputs))[graph.outputs[""]]
        except Exception:  # an operator may refuse rows in any way
            return None
        finally:
            servable.close()
    return np.asarray(served, np.float64)
