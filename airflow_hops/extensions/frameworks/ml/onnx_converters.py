"""Frameworks whose models become ONNX graphs, and the common part of their converters."""

from __future__ import annotations

import contextlib
import importlib
import logging
import warnings
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_hops.core.artifacts.target import Target
from airflow_hops.core.errors import BadInput
from airflow_hops.extensions.frameworks.ml.converter_fixes import prefix_apart
from airflow_hops.extensions.frameworks.serving.formats import ONNX
from airflow_hops.ml.models.frameworks import Framework, NotExportable, Written
from airflow_hops.ml.models.samples import Sample
from airflow_hops.serving.models.model_signature import EstimatorInputs

OPSET = 18
"""Opset of the graphs, which onnxruntime has supported since 2023."""


@dataclass(frozen=True)
class Graph:
    """ONNX graph.

    Attributes:
        content: Bytes of the file.
        inputs: Its inputs: columns by name, or one matrix.
        outputs: Names of the graph's outputs by the model's; the only output of a model has the key ``""``.

    Example:
        >>> from airflow_hops.extensions.frameworks import Graph
        >>> Graph(b"", inputs=None, outputs={"": "probabilities"}).outputs
        {'': 'probabilities'}
    """

    content: bytes
    inputs: EstimatorInputs
    outputs: Mapping[str, str]


class OnnxFramework(Framework):
    """A framework whose models become ONNX graphs.

    Example:
        >>> from airflow_hops.extensions.frameworks import OnnxFramework
        >>> class CatBoost(OnnxFramework):
        ...     def convert(self, model, sample, target):
        ...         return Graph(to_onnx(model), inputs_of(sample), {"": "probabilities"})
        ...     def predict(self, model, sample, target):
        ...         return model.predict_proba(sample)
        >>> CatBoost().formats(model=None)
        ('onnx',)
    """

    def formats(self, model: object) -> Sequence[str]:
        """Returns only the format of ONNX graphs."""
        return ("onnx",)

    def write(self, model: object, folder: Path, format: str, sample: Sample, target: Target) -> Written:
        """Writes the model's graph; those of several models, by label, become one."""
        graph = self.graph_of(model, sample, target)
        (folder / ONNX.files[0]).write_bytes(graph.content)
        return Written(graph.inputs, graph.outputs)

    def graph_of(self, model: object, sample: Sample, target: Target) -> Graph:
        """Returns the graph of a model, or of a dict of models by label, without the converters' remarks.

        Raises:
            NotExportable: No converter exists for it.
            BadInput: A package is missing, or models of several labels take different inputs.
        """
        if isinstance(model, Mapping):
            return _merged({each.label: self.graph_of(model[each.label], sample, each) for each in target.all})
        with _quiet():
            return self.convert(model, sample, target)

    @abstractmethod
    def convert(self, model: Any, sample: Sample, target: Target) -> Graph:
        """Returns the model as an ONNX graph.

        Raises:
            NotExportable: No converter exists for the model.
            BadInput: A package is missing.
        """


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
        nodes += [
            onnx.helper.make_node("Identity", [value.name], [f"{prefix}{value.name}"]) for value in own.graph.input
        ]
        nodes += part.node
        initializers += part.initializer
        ((_, output),) = graph.outputs.items()
        names[label] = f"{prefix}{output}"
        outputs += [value for value in part.output if value.name == names[label]]
        for each in own.opset_import:
            opsets[each.domain] = max(each.version, opsets.get(each.domain, 0))
    whole = onnx.helper.make_graph(nodes, "labels", list(own.graph.input), outputs, initializers)
    imports = [onnx.helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    made = onnx.helper.make_model(whole, opset_imports=imports, ir_version=own.ir_version)
    return Graph(made.SerializeToString(), inputs, names)


def given_inputs(inputs: EstimatorInputs, types: Any) -> list[tuple[str, object]]:
    """Returns the inputs in the converter's own types."""
    by_type = {"float": types.FloatTensorType, "int64": types.Int64TensorType, "string": types.StringTensorType}
    return [(name, by_type[kind.name]([None, inputs.width or 1])) for name, kind in inputs.columns.items()]


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
def converting(model: object, parts: Iterable[tuple[str, object]] = ()) -> Iterator[None]:
    """Names the failing part of a model in the error of a converter, which can fail in any way.

    Args:
        model: The model.
        parts: Steps of a pipeline, each with its name in messages.

    Raises:
        NotExportable: The converter failed.
    """
    try:
        yield
    except Exception as error:
        text = str(error).strip() or type(error).__name__
        named = (f"{name} ({type(part).__name__})" for name, part in parts if type(part).__name__ in text)
        failed = next(named, type(model).__name__)
        message = f"{failed} does not convert to ONNX: {text.splitlines()[0]}"
        kinds = {"steps": "step", "stages": "stage", "named_children": "layer"}
        kind = next((kind for attribute, kind in kinds.items() if hasattr(model, attribute)), "estimator")
        raise NotExportable(message, f"use another {kind}") from error


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
