"""Trained models as ONNX graphs: by skl2onnx, onnxmltools, or PyTorch's own exporter."""

from __future__ import annotations

import contextlib
import importlib
import io
import logging
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from airflow_hops.core.contract.artifacts import BadInput
from airflow_hops.core.contract.target import REGRESSION, Target
from airflow_hops.core.serving_api import tensors
from airflow_hops.ml.models.converter_fixes import (
    BoosterInputs,
    correct_spark,
    correct_texts,
    correct_unknown_categories,
    missing_directions,
    models_within,
    name_apart,
    numbers_missing_alone,
    prefix_apart,
    refuse_negative_indices,
    round_thresholds,
    scale_in_double,
    steps_of,
    text_options,
    unknown_categories,
)
from airflow_hops.ml.models.frameworks import frameworks
from airflow_hops.ml.models.trained_models import Sample, rows_for_torch, spark_output, spark_session
from airflow_hops.serving.models.estimator_signature import MATRIX_INPUT, EstimatorInputs

_OPSET = 18
"""Opset of the graphs: onnxruntime has known it since 2023."""


class NotConvertible(Exception):
    """There is no converter for the model, or for a step of it."""


@dataclass(frozen=True)
class Graph:
    """An ONNX graph.

    Attributes:
        content: The file.
        inputs: Its inputs: columns by name, or one matrix.
        outputs: Names of the graph's outputs by the model's; the only output of a model has the key ``""``.
    """

    content: bytes
    inputs: EstimatorInputs
    outputs: Mapping[str, str]


def convert(model: Any, sample: Sample, framework: str, target: Target) -> Graph:
    """Converts a model.

    Args:
        model: The model; several models, by label, become one graph.
        sample: Rows as the model takes them.
        framework: Name of its framework.
        target: What the model predicts.

    Raises:
        NotConvertible: There is no converter for it.
        BadInput: A package is missing, or models of several labels take different inputs.
    """
    if isinstance(model, Mapping):
        return _merged({each.label: convert(model[each.label], sample, framework, each) for each in target.all})
    with _quiet():
        return frameworks()[framework].convert(model, sample, target)


def _merged(graphs: Mapping[str, Graph]) -> Graph:
    """Graphs of the same inputs as one; the outputs' names are numbered.

    A converter states the lowest opset that has its operators as they are: the greatest of them serves them all.
    """
    onnx = importlib.import_module("onnx")
    inputs = next(iter(graphs.values())).inputs
    nodes, initializers, outputs, names = [], [], [], {}
    opsets: dict[str, int] = {}
    apart = prefix_apart(inputs.columns)
    for number, (label, graph) in enumerate(graphs.items()):
        if graph.inputs != inputs:
            raise BadInput(
                f"the models of the labels {next(iter(graphs))!r} and {label!r} take different inputs "
                f"({', '.join(inputs.columns)}; {', '.join(graph.inputs.columns)}); train them on the same columns, in "
                "the same form"
            )
        own = onnx.load_from_string(graph.content)
        prefix = f"{apart}{number}/"
        part = onnx.compose.add_prefix(own, prefix, rename_functions=False).graph
        nodes += [onnx.helper.make_node("Identity", [of.name], [f"{prefix}{of.name}"]) for of in own.graph.input]
        nodes += part.node
        initializers += part.initializer
        ((_, output),) = graph.outputs.items()
        names[label] = f"{prefix}{output}"
        outputs += [of for of in part.output if of.name == names[label]]
        for each in own.opset_import:
            opsets[each.domain] = max(each.version, opsets.get(each.domain, 0))
    whole = onnx.helper.make_graph(nodes, "labels", list(own.graph.input), outputs, initializers)
    imports = [onnx.helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    made = onnx.helper.make_model(whole, opset_imports=imports, ir_version=own.ir_version)
    return Graph(made.SerializeToString(), inputs, names)


def convert_scikit_learn(model: Any, sample: Sample, target: Target) -> Graph:
    """Converts an estimator or pipeline of scikit-learn."""
    skl2onnx = _imported("skl2onnx", "sklearn")
    types = importlib.import_module("skl2onnx.common.data_types")
    _register_boosters(model)
    inputs = _inputs_of(model, sample)
    values = _given(inputs, types)
    # A scaler divides, as in scikit-learn and in its precision: otherwise a value may pass a threshold.
    is_single = {column.dtype for column in sample.columns() if column.dtype.kind != "O"} <= {np.dtype("float32")}
    scalers = {} if is_single else dict.fromkeys(_scalers(), scale_in_double)
    options: dict[Any, Any] = {step: {"div": "div"} for step in _scalers()} | text_options(model)
    if target.problem != REGRESSION:
        options[id(model)] = {"zipmap": False}
    for each in models_within(model):
        round_thresholds(each)
    try:
        with missing_directions(), _numbered_features(step for _, step in steps_of(model)):
            graph = skl2onnx.convert_sklearn(
                model,
                initial_types=values,
                options=options,
                target_opset={"": _OPSET, "ai.onnx.ml": 3},
                custom_conversion_functions=scalers,
            )
    except Exception as error:  # a converter can fail in any way
        raise NotConvertible(
            f"{_step_that_failed(model, error)} does not convert to ONNX: {_first_line(error)}"
        ) from error
    correct_texts(graph.graph)
    correct_unknown_categories(graph.graph, unknown_categories(model))
    graph = name_apart(graph, [name for name, _ in values])
    return Graph(graph.SerializeToString(), inputs, {"": _output(graph)})


def convert_boosted_trees(model: Any, sample: Sample, framework: str) -> Graph:
    """Converts a model of LightGBM or XGBoost that is not within a pipeline."""
    onnxmltools = _imported("onnxmltools", framework)
    types = importlib.import_module("onnxmltools.convert.common.data_types")
    width = sample.matrix.shape[1]
    options: dict[str, Any] = {"target_opset": 15}
    if framework == "lightgbm":
        options["zipmap"] = False
    try:
        with _numbered_features([model]), numbers_missing_alone(model):
            types_of_inputs = [(MATRIX_INPUT, types.FloatTensorType([None, width]))]
            graph = getattr(onnxmltools, f"convert_{framework}")(model, initial_types=types_of_inputs, **options)
    except Exception as error:  # a converter can fail in any way
        raise NotConvertible(f"{type(model).__name__} does not convert to ONNX: {_first_line(error)}") from error
    BoosterInputs.of(model).correct(graph)
    inputs = EstimatorInputs({MATRIX_INPUT: tensors.BY_NAME["float"]}, width)
    return Graph(graph.SerializeToString(), inputs, {"": _output(graph)})


def _given(inputs: EstimatorInputs, types: Any) -> list[tuple[str, Any]]:
    """Returns the inputs in the converter's own types."""
    by_type = {"float": types.FloatTensorType, "int64": types.Int64TensorType, "string": types.StringTensorType}
    return [(name, by_type[kind.name]([None, inputs.width or 1])) for name, kind in inputs.columns.items()]


def _scalers() -> tuple[type, ...]:
    from sklearn.preprocessing import MaxAbsScaler, RobustScaler, StandardScaler

    return MaxAbsScaler, RobustScaler, StandardScaler


def _inputs_of(model: Any, sample: Sample) -> EstimatorInputs:
    """Columns by name where the model picks them by name; else one matrix, of numbers or of strings."""
    first = model
    while hasattr(first, "steps"):
        first = first.steps[0][1]
    kinds = set(sample.inputs.columns.values())
    is_text = kinds == {tensors.STRING}
    if sample.inputs.width is not None or hasattr(first, "transformers") or (tensors.STRING in kinds and not is_text):
        return sample.inputs
    kind = tensors.STRING if is_text else tensors.BY_NAME["float"]
    return EstimatorInputs({MATRIX_INPUT: kind}, len(sample.inputs.columns))


def _step_that_failed(model: Any, error: Exception) -> str:
    """Names the step of a pipeline that the error speaks of, by its type, or else the model."""
    for path, step in steps_of(model):
        if path and type(step).__name__ in str(error):
            return f"step {path!r} ({type(step).__name__})"
    return type(model).__name__


def _register_boosters(model: Any) -> None:
    """Teaches skl2onnx the boosted trees that stand in a pipeline."""
    families = {type(step).__module__.partition(".")[0] for _, step in steps_of(model)}
    for family in families & {"lightgbm", "xgboost"}:
        _imported("onnxmltools", family)
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


def convert_spark(model: Any, sample: Sample, target: Target) -> Graph:
    """Converts a fitted pipeline of Spark ML."""
    onnxmltools = _imported("onnxmltools", "Spark ML")
    types = importlib.import_module("onnxmltools.convert.common.data_types")
    values = _given(sample.inputs, types)
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # it prints coefficients
            graph = onnxmltools.convert_sparkml(model, "model", values, target_opset=15, spark_session=spark_session())
    except Exception as error:  # a converter can fail in any way
        raise NotConvertible(
            f"{_stage_that_failed(model, error)} does not convert to ONNX: {_first_line(error)}"
        ) from error
    correct_spark(graph.graph)
    correct_unknown_categories(graph.graph, unknown_categories(model))
    (output,) = [number for number, of in enumerate(graph.graph.output) if of.name == spark_output(target)]
    graph = name_apart(graph, [name for name, _ in values])
    return Graph(graph.SerializeToString(), sample.inputs, {"": str(graph.graph.output[output].name)})


def _stage_that_failed(model: Any, error: Exception) -> str:
    for number, stage in enumerate(getattr(model, "stages", ())):
        if type(stage).__name__ in str(error) or stage.uid in str(error):
            return f"stage {number} ({type(stage).__name__})"
    return type(model).__name__


@contextlib.contextmanager
def _numbered_features(models: Iterable[Any]) -> Iterator[None]:
    """Has the features of XGBoost's models be called ``f0``, ``f1``, …, the only names that its converter reads."""
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


def convert_torch(model: Any, sample: Sample) -> Graph:
    """Converts a ``torch.nn.Module``."""
    import torch

    content = io.BytesIO()
    rows = rows_for_torch(model, sample.matrix[:2])
    with torch.no_grad():
        result = model(rows)
    names = {name: f"output/{name}" for name in result} if isinstance(result, Mapping) else {"": "output"}

    class Heads(torch.nn.Module):  # type: ignore[misc]
        """The outputs in their order, which is all that a graph knows of them."""

        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, rows: Any) -> Any:
            result = self.model(rows)
            return tuple(result[name] for name in names)

    axes = {name: {0: "batch"} for name in (MATRIX_INPUT, *names.values())}
    try:
        torch.onnx.export(
            Heads().eval() if isinstance(result, Mapping) else model,
            (rows,),
            content,
            input_names=[MATRIX_INPUT],
            output_names=list(names.values()),
            dynamic_axes=axes,
            opset_version=_OPSET,
            dynamo=False,
        )
    except Exception as error:  # an exporter can fail in any way
        raise NotConvertible(f"{type(model).__name__} does not convert to ONNX: {_first_line(error)}") from error
    graph = importlib.import_module("onnx").load_from_string(content.getvalue())
    tables = [name for name, module in model.named_modules() if isinstance(module, torch.nn.Embedding)]
    refuse_negative_indices(graph.graph, [f"{name}.weight" for name in tables])
    inputs = EstimatorInputs({MATRIX_INPUT: tensors.BY_NAME["float"]}, sample.matrix.shape[1])
    return Graph(graph.SerializeToString(), inputs, names)


def _output(graph: Any) -> str:
    """The output that is the prediction: the last, after the label of a classifier."""
    return str(graph.graph.output[-1].name)


def _imported(name: str, framework: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise BadInput(
            f"a model of {framework} is converted with {name}, which is not installed in this runtime environment "
            f"({error}); airflow hops runtime install {name}"
        ) from error


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the converters' remarks on versions and deprecations, which nobody can act on."""
    loggers = [logging.getLogger(name) for name in ("skl2onnx", "onnxmltools", "torch.onnx")]
    levels = [each.level for each in loggers]
    for each in loggers:
        each.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for each, level in zip(loggers, levels, strict=True):
            each.setLevel(level)
