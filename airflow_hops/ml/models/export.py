"""Exports a trained model of any framework to a folder for the model server, and checks it on held-out rows.

Example::

    from airflow_hops.ml.models.export import export_model

    exported = export_model(estimator, output, framework="sklearn", target=context.target, sample=eval_rows)
"""

from __future__ import annotations

import importlib.metadata
import shutil
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from airflow_hops.core.contract.artifacts import BadInput
from airflow_hops.core.contract.properties import ModelFormat
from airflow_hops.core.contract.target import REGRESSION, Target
from airflow_hops.core.processes.temporary_folders import temporary_folder
from airflow_hops.core.serving_api import tensors
from airflow_hops.extensions.frameworks.ml.onnx_converters import Graph, NotConvertible, convert
from airflow_hops.ml.features.feature_specs import FeatureSpecs
from airflow_hops.ml.models.frameworks import frameworks
from airflow_hops.ml.models.proof import Differs, TrainedAnswers, check_rows_apart
from airflow_hops.ml.models.scikit_learn import UntrustedTypes, write_skops
from airflow_hops.ml.models.trained_models import Sample, answers_of
from airflow_hops.ml.readers.vectors import split_dtype
from airflow_hops.serving.errors import ServingError
from airflow_hops.serving.models.estimator_signature import SIGNATURE_FILE, EstimatorInputs
from airflow_hops.serving.models.local import LocalServable
from airflow_hops.serving.models.model_options import ModelOptions
from airflow_hops.serving.models.model_signature import TRANSFORM_GRAPH, Head, ModelSignature
from airflow_hops.serving.models.signature_defs import ProblemOutputs

TOLERANCE = 1e-3
_STEP_TOLERANCE = 1e-4


@dataclass(frozen=True)
class ExportedModel:
    """Result of an export.

    Attributes:
        format: ``onnx`` or ``skops``; the folder in the artifact has the same name.
        versions: Versions of the framework and of the converter, by distribution.
        largest_difference: Largest difference between the model and the exported model on any row of the sample: of a
            probability or, in a regression, in standard deviations of the predictions.
        inputs: Inputs of requests: dtypes (int64, float32, string, …) by name.
        not_converted: Why the model was not converted to ONNX, or None.
    """

    format: ModelFormat
    framework: str
    versions: Mapping[str, str]
    largest_difference: float
    inputs: Mapping[str, str]
    not_converted: str | None = None


def export_model(
    model: Any,
    folder: Path,
    *,
    framework: str,
    target: Target,
    sample: Any,
    transform_graph: Path | None = None,
    order: Sequence[str] | None = None,
    widths: Mapping[str, int] | None = None,
    tolerance: float = TOLERANCE,
    fall_back: bool = False,
) -> ExportedModel:
    """Writes ``<folder>/onnx`` (or ``<folder>/skops``) for the model server, completely or not at all.

    The exported model predicts each row of the sample, and is compared with the model itself: it takes float32 features
    and computes in float32, which can lead a tree to another leaf. Both also answer, or refuse, probe rows
    (:mod:`airflow_hops.ml.models.proof`), with values that the sample may lack.

    Args:
        model: A fitted estimator of scikit-learn (a Pipeline, too), XGBoost or LightGBM (a Booster, too), a
            ``PipelineModel`` of Spark ML, whose session still runs, or a ``torch.nn.Module``, which returns
            probabilities if there are classes. Classes are class numbers. For several labels: a dict of models by
            label, of one framework, or a module that returns a dict by label; its other outputs are served unchanged.
        folder: The artifact's folder.
        framework: ``sklearn``, ``xgboost``, ``lightgbm``, ``torch``, ``pyspark``, or the name of an extension.
        target: What the model predicts.
        sample: Held-out rows as the model takes them: a data frame, or a matrix ``[rows, width]``.
        transform_graph: The pipeline's transform graph, if the model takes its outputs: it is placed before the model,
            so that requests hold raw features; its ``features.json`` is in the same folder. None if the model takes raw
            features.
        order: Names of the raw features or graph outputs in the columns of a matrix; an output of several values takes
            as many columns. None for the columns of the data frame.
        widths: Number of matrix columns of each raw feature in ``order`` that is a vector.
        tolerance: Largest difference allowed.
        fall_back: Whether to store a scikit-learn estimator with skops if its ONNX graph cannot be made or loaded, or
            differs from it.

    Raises:
        BadInput: the model does not predict the target, has no converter (the message names the step of its Pipeline),
            differs from the exported model (the message names rows), or a package is missing.
        FileExistsError: The folder of the format exists already.
    """
    if framework not in frameworks():
        raise BadInput(f"framework is {framework!r}; expected one of {', '.join(frameworks())}")
    rows = Sample.of(sample, order)
    expected = answers_of(model, rows, framework, target)

    def trained(probe: Sample) -> Mapping[str, np.ndarray[Any, Any]]:
        return answers_of(model, probe, framework, target, checked=False)

    try:
        check_rows_apart(
            lambda numbers: trained(rows.take(numbers)), expected, "the trained model", tolerance, target.probabilities,
            rows.labels,
        )  # fmt: skip
    except Differs as error:
        raise BadInput(f"{error}. {error.advice}") from error
    answers = TrainedAnswers.of(rows, expected, trained)
    signature = _signature(rows, target, transform_graph, widths or {})
    staging = folder / f".staging-export-{uuid.uuid4().hex[:8]}"
    staging.mkdir(parents=True)
    try:
        reason = None
        form: ModelFormat = "onnx"
        try:
            graph = convert(model, rows, framework, target)
            (staging / "model.onnx").write_bytes(graph.content)
            taken = replace(_with_model(signature, graph.inputs, rows), refused=answers.refused)
            stored = _with_outputs(taken, graph, target)
            largest = _prove(staging, form, stored, answers, target.probabilities, tolerance)
        except (NotConvertible, Differs) as error:
            can_fall_back = framework == "sklearn" and not isinstance(model, Mapping)
            if not can_fall_back or not fall_back:
                raise BadInput(_refusal(error, model, can_fall_back)) from error
            reason, form = str(error), "skops"
            stored = _with_model(signature, rows.inputs, rows)
            (staging / "model.onnx").unlink(missing_ok=True)
            try:
                write_skops(model, staging)
                largest = _prove(staging, form, stored, answers, target.probabilities, tolerance)
            except UntrustedTypes as untrusted:
                raise BadInput(f"{reason}, and {untrusted}; use another step") from error
            except Differs as differs:
                raise BadInput(f"{differs}. {differs.advice}") from differs
        if transform_graph is not None:
            shutil.copytree(transform_graph, staging / TRANSFORM_GRAPH)
        (staging / SIGNATURE_FILE).write_text(stored.to_json())
        _open(staging, form).close()
        final = folder / form
        if final.exists():
            raise FileExistsError(f"{final}: exists already; a model is written once")
        staging.rename(final)
    except ServingError as error:
        raise BadInput(f"the exported model does not load: {error}".replace(f"{staging}/", "")) from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    inputs = {
        name: _dtype(kind) + (f"[{shape[1]}]" if len(shape) > 1 else "")
        for name, kind, shape in stored.requests.specs()
    }
    return ExportedModel(form, framework, _versions(framework, form), largest, inputs, reason)


def _signature(rows: Sample, target: Target, transform_graph: Path | None, widths: Mapping[str, int]) -> ModelSignature:
    outputs = ProblemOutputs(target.problem, target.classes)
    if transform_graph is None:
        requests = rows.columns_of_requests(widths)
        return ModelSignature(requests, requests, None, outputs)
    if rows.order is None:
        raise BadInput(
            "the sample is a matrix, and order is None; expected the names of the transform's outputs that its columns "
            "are"
        )
    specs = FeatureSpecs.read(transform_graph.parent / "features.json")
    missing = [name for name in rows.order if name not in specs.outputs]
    if missing:
        raise BadInput(
            f"the model takes {', '.join(map(repr, missing))}, which are not among the transform's outputs: "
            f"{', '.join(specs.outputs)}"
        )
    dtypes = {name: split_dtype(dtype) for name, dtype in specs.inputs_of(rows.order).items()}
    raw = {name: tensors.BY_NAME[_TYPES[dtype]] for name, (dtype, _) in dtypes.items()}
    vectors = {name: width for name, (_, width) in dtypes.items() if width is not None}
    return ModelSignature(EstimatorInputs(raw, vectors=vectors), rows.inputs, None, outputs)


_TYPES = {"int64": "int64", "float32": "float", "string": "string"}


def _dtype(kind: tensors.TensorType) -> str:
    return {"float": "float32", "double": "float64"}.get(kind.name, kind.name)


def _with_model(signature: ModelSignature, taken: EstimatorInputs, rows: Sample) -> ModelSignature:
    """Sets the inputs of the stored model: by name, or a matrix whose columns are those of the order."""
    is_asked_by_name = signature.requests.width is None
    order = rows.order if taken.width is not None and is_asked_by_name else None
    return replace(signature, model=taken, order=order)


def _with_outputs(signature: ModelSignature, graph: Graph, target: Target) -> ModelSignature:
    """Sets the graph's outputs: those of labels, and others."""
    if "" in graph.outputs:
        return replace(signature, output=graph.outputs[""])
    left = dict(graph.outputs)
    first = left.pop(target.label)
    heads = {each.label: Head.of(each.label, each.problem, each.classes, left.pop(each.label)) for each in target.more}
    return replace(signature, output=first, heads=heads, passed=left)


def _prove(
    folder: Path,
    form: ModelFormat,
    signature: ModelSignature,
    answers: TrainedAnswers,
    probabilities: set[str],
    tolerance: float,
) -> float:
    """Compares the model to be served with the trained model, without the transform graph."""
    alone = replace(signature, requests=signature.model, order=None)
    (folder / SIGNATURE_FILE).write_text(alone.to_json())
    try:
        servable = _open(folder, form)
    except ServingError as error:
        raise NotConvertible(f"the exported model ({form}) does not load: {error}".replace(f"{folder}/", "")) from error
    try:
        return answers.compare(
            lambda sample: servable.predict(sample.arrays(signature.model)), form, tolerance, probabilities
        )
    finally:
        servable.close()


def _open(folder: Path, form: ModelFormat) -> LocalServable:
    if form == "skops":
        from airflow_hops.extensions.frameworks.serving.scikit_learn import EstimatorServable

        return EstimatorServable("export", 1, folder, ModelOptions())
    from airflow_hops.extensions.frameworks.serving.onnx import OnnxServable

    return OnnxServable("export", 1, folder, ModelOptions())


def _refusal(error: NotConvertible | Differs, model: Any, can_fall_back: bool) -> str:
    advice = []
    if isinstance(error, Differs):
        step = None if error.rows is None or not hasattr(model, "fit") else _differing_step(model, error.rows)
        advice = [f"{step} is converted inexactly"] if step else []
        advice.append(error.advice)
    if can_fall_back:
        advice.append("set fall_back=True to store the estimator itself with skops")
    if isinstance(error, NotConvertible):
        kinds = {"steps": "step", "stages": "stage", "named_children": "layer"}
        part = next((part for attribute, part in kinds.items() if hasattr(model, attribute)), "estimator")
        advice.append(error.advice or f"use another {part}")
    if isinstance(model, Mapping):
        advice.append("models of several labels are only served as one ONNX graph")
    return f"{error}. {'; '.join(advice)}"


def _differing_step(model: Any, sample: Sample) -> str | None:
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
            served = _transformed(head, sample)
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


def _transformed(head: Any, sample: Sample) -> np.ndarray[Any, Any] | None:
    """Runs the graph of the first steps of a Pipeline; None if it refuses the rows."""
    graph = convert(head, sample, "sklearn", Target("none", REGRESSION))
    with temporary_folder("export") as folder:
        (Path(folder) / "model.onnx").write_bytes(graph.content)
        (Path(folder) / SIGNATURE_FILE).write_text(ModelSignature(graph.inputs, graph.inputs).to_json())
        servable = _open(Path(folder), "onnx")
        try:
            served = servable.predict(sample.arrays(graph.inputs))[graph.outputs[""]]
        except Exception:  # an operator may refuse rows in any way
            return None
        finally:
            servable.close()
    return np.asarray(served, np.float64)


def _versions(framework: str, form: ModelFormat) -> dict[str, str]:
    names = [*frameworks()[framework].distributions, *(("skops",) if form == "skops" else ("onnx", "onnxruntime"))]
    versions = {}
    for name in names:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions
