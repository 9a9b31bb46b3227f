"""Converts trained models to ONNX graphs."""

from __future__ import annotations

import contextlib
import importlib
import logging
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from airflow_hops.core.contract.artifacts import BadInput
from airflow_hops.core.contract.target import Target
from airflow_hops.extensions.frameworks.ml.converter_fixes import prefix_apart
from airflow_hops.ml.models.frameworks import frameworks
from airflow_hops.ml.models.trained_models import Sample
from airflow_hops.serving.models.estimator_signature import EstimatorInputs


class NotConvertible(Exception):
    """A model, or a step of it, has no converter.

    Args:
        message: The model or step, and the reason.
        advice: What to use instead; None for anything else.
    """

    def __init__(self, message: str, advice: str | None = None) -> None:
        super().__init__(message)
        self.advice = advice


@dataclass(frozen=True)
class Graph:
    """ONNX graph.

    Attributes:
        content: Bytes of the file.
        inputs: Its inputs: columns by name, or one matrix.
        outputs: Names of the graph's outputs by the model's; the only output of a model has the key ``""``.
    """

    content: bytes
    inputs: EstimatorInputs
    outputs: Mapping[str, str]


def convert(model: Any, sample: Sample, framework: str, target: Target) -> Graph:
    """Converts a model; several models, by label, become one graph.

    Raises:
        NotConvertible: There is no converter for it.
        BadInput: A package is missing, or models of several labels take different inputs.
    """
    if isinstance(model, Mapping):
        return _merged({each.label: convert(model[each.label], sample, framework, each) for each in target.all})
    with _quiet():
        return frameworks()[framework].convert(model, sample, target)


def _merged(graphs: Mapping[str, Graph]) -> Graph:
    """Merges graphs of the same inputs; the outputs' names are numbered.

    A converter states the lowest opset that has its operators in this form; the greatest of these has them all.
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


def imported(name: str, framework: str) -> Any:
    """Imports a package that converts models of a framework.

    Raises:
        BadInput: It is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise BadInput(
            f"a model of {framework} is converted with {name}, which is not installed in this runtime environment "
            f"({error}); airflow hops runtime install {name}"
        ) from error


@contextlib.contextmanager
def converting(model: Any, parts: Iterable[tuple[str, Any]] = ()) -> Iterator[None]:
    """Names the failing part of a model in the error of a converter, which can fail in any way.

    Args:
        model: The model.
        parts: Steps of a pipeline, each with its name in messages.

    Raises:
        NotConvertible: The converter failed.
    """
    try:
        yield
    except Exception as error:
        text = str(error).strip() or type(error).__name__
        named = (f"{name} ({type(part).__name__})" for name, part in parts if type(part).__name__ in text)
        failed = next(named, type(model).__name__)
        raise NotConvertible(f"{failed} does not convert to ONNX: {text.splitlines()[0]}") from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silences the converters' remarks on versions and deprecations, which users cannot act on."""
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
