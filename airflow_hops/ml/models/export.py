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
from typing import Any, cast

import numpy as np

from airflow_hops.core.artifacts.target import MULTICLASS, OUTPUTS, Target
from airflow_hops.core.errors import BadInput
from airflow_hops.core.extensions import FRAMEWORKS, MODEL_FORMATS, find_extension, load_extension
from airflow_hops.core.serving_api import tensors
from airflow_hops.ml.features.feature_specs import FeatureSpecs
from airflow_hops.ml.models.frameworks import Framework, NotExportable, Written, frameworks
from airflow_hops.ml.models.proof import Differs, TrainedAnswers, check_rows_apart
from airflow_hops.ml.models.samples import Sample
from airflow_hops.ml.models.trained_models import answers_of
from airflow_hops.ml.readers.vectors import split_dtype
from airflow_hops.serving.errors import ServingError
from airflow_hops.serving.models.formats import ModelOptions
from airflow_hops.serving.models.local import LocalServable
from airflow_hops.serving.models.model_signature import SIGNATURE_FILE, TRANSFORM_GRAPH, EstimatorInputs, ModelSignature
from airflow_hops.serving.models.signature_defs import ProblemOutputs

# Order: the trained model's answers for all rows, alone and together; write in the first format; load it as the server
# does; compare on held-out rows and on probe rows; add graph and signature; load once more; rename. Only a model that
# has passed everything gets its final name. With fall_back, a format that cannot be written or differs is followed by
# the next one.

TOLERANCE = 1e-3


@dataclass(frozen=True)
class ExportedModel:
    """Result of an export.

    Attributes:
        format: Registered name of its format; the folder in the artifact has the same name.
        versions: Versions of the framework and of the converter, by distribution.
        largest_difference: Largest difference between the model and the exported model on any row of the sample: of a
            probability or, in a regression, in standard deviations of the predictions.
        inputs: Inputs of requests: dtypes (int64, float32, string, …) by name.
        not_converted: Why the model is not in its framework's first format, or None.

    Example:
        >>> from airflow_hops import ExportedModel
        >>> model = ExportedModel("onnx", "scikit-learn", {"skl2onnx": "1.19"}, 1e-7, {"distance": "float32"})
        >>> model.not_converted is None
        True
    """

    format: str
    framework: str
    versions: Mapping[str, str]
    largest_difference: float
    inputs: Mapping[str, str]
    not_converted: str | None = None


def export_model(
    model: object,
    folder: Path,
    *,
    framework: str,
    target: Target,
    sample: object,
    transform_graph: Path | None = None,
    order: Sequence[str] | None = None,
    widths: Mapping[str, int] | None = None,
    tolerance: float = TOLERANCE,
    fall_back: bool = False,
) -> ExportedModel:
    """Writes ``<folder>/<format>`` for the model server, completely or not at all.

    The exported model predicts each row of the sample, and is compared with the model itself: it takes float32 features
    and computes in float32, which can lead a tree to another leaf. Both also answer, or refuse, probe rows
    (:mod:`airflow_hops.ml.models.proof`), with values that the sample may lack.

    Args:
        model: A trained model of the framework, such as an estimator or a Pipeline of scikit-learn. It gives
            probabilities if there are classes; classes are class numbers. For several labels: a dict of models by
            label, of one framework, or a model that returns a dict by label; its other outputs are served unchanged.
        folder: The artifact's folder.
        framework: Registered name of the framework.
        target: Target of the model.
        sample: Held-out rows as the model takes them: a data frame, or a matrix ``[rows, width]``.
        transform_graph: The pipeline's transform graph, if the model takes its outputs: it is placed before the model,
            so that requests hold raw features; its ``features.json`` is in the same folder. None if the model takes raw
            features.
        order: Names of the raw features or graph outputs in the columns of a matrix; an output of several values takes
            as many columns. None for the columns of the data frame.
        widths: Number of matrix columns of each raw feature in ``order`` that is a vector.
        tolerance: Largest difference allowed.
        fall_back: Whether to use the framework's next format if the model in the first cannot be made or loaded, or
            differs.

    Raises:
        BadInput: the framework is not registered, or a package is missing; or the model does not predict the target,
            cannot be written (the message names the step of a Pipeline), differs from the exported model, or chooses
            other classes than the likeliest (the message names rows).
        FileExistsError: The folder of the format exists already.
    """
    find_extension(FRAMEWORKS, framework)
    known = frameworks()[framework]
    rows = Sample.of(sample, order)
    expected = answers_of(model, rows, framework, target)
    _check_classes(known, model, rows, target, expected)

    def trained(probe: Sample) -> Mapping[str, np.ndarray]:
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
    formats = known.formats(model)
    errors: list[NotExportable | Differs] = []
    try:
        for form in formats if fall_back else formats[:1]:
            written = staging / form
            written.mkdir(parents=True)
            try:
                stored = _with_model(signature, known.write(model, written, form, rows, target), rows, target)
                stored = replace(stored, refused=answers.refused)
                largest = _prove(written, form, stored, answers, target.probabilities, tolerance)
                break
            except (NotExportable, Differs) as error:
                errors.append(error)
        else:
            raise BadInput(_refusal(errors, known, model, formats[len(errors) :])) from errors[-1]
        if transform_graph is not None:
            shutil.copytree(transform_graph, written / TRANSFORM_GRAPH)
        (written / SIGNATURE_FILE).write_text(stored.to_json())
        _open(written, form).close()
        final = folder / form
        if final.exists():
            raise FileExistsError(f"{final}: exists already; a model is written once")
        written.rename(final)
    except ServingError as error:
        raise BadInput(f"the exported model does not load: {error}".replace(f"{written}/", "")) from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    inputs = {
        name: _dtype(kind) + (f"[{shape[1]}]" if len(shape) > 1 else "")
        for name, kind, shape in stored.requests.specs()
    }
    reason = str(errors[0]) if errors else None
    return ExportedModel(form, framework, _versions(known, form), largest, inputs, reason)


def _check_classes(
    known: Framework, model: object, rows: Sample, target: Target, expected: Mapping[str, np.ndarray]
) -> None:
    """Raises BadInput if a model chooses another class than the likeliest, which is served."""
    models = model if isinstance(model, Mapping) else {target.label: model}
    for each in target.all:
        one, probabilities = (
            models.get(each.label),
            expected.get(target.output_prefix(each.label) + OUTPUTS[MULTICLASS]),
        )
        if each.problem != MULTICLASS or one is None or probabilities is None:
            continue
        chosen, names = known.classes(one, rows), each.classes or ()
        if chosen is None:
            continue
        chosen, likeliest = np.asarray(chosen).astype(int), probabilities.argmax(axis=1)
        if len(other := np.flatnonzero(chosen != likeliest)):
            shown = "; ".join(
                f"row {rows.labels[row]}: {names[chosen[row]]!r} and not {names[likeliest[row]]!r} "
                f"({probabilities[row, chosen[row]]:.4g} and {probabilities[row, likeliest[row]]:.4g})"
                for row in other[:5]
            )
            raise BadInput(
                f"label {each.label!r}: the served class is the likeliest, and {type(one).__name__} chooses another "
                f"one in {len(other)} of {len(rows.labels)} rows of the sample: {shown}. Scale the features "
                "if probabilities are tied, wrap the model in sklearn.calibration.CalibratedClassifierCV, or set no "
                "thresholds (Spark ML)"
            )


def _signature(rows: Sample, target: Target, transform_graph: Path | None, widths: Mapping[str, int]) -> ModelSignature:
    outputs = ProblemOutputs(target.problem, target.classes)
    if transform_graph is None:
        requests = rows.columns_of_requests(widths)
        return ModelSignature(requests, requests, None, outputs)
    if rows.order is None:
        raise BadInput(
            "the sample is a matrix, and order is None; expected the names of the transform's outputs in its columns"
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


def _with_model(signature: ModelSignature, written: Written, rows: Sample, target: Target) -> ModelSignature:
    """Records the stored model's inputs, by name or as a matrix with the columns of the order, and its outputs."""
    is_asked_by_name = signature.requests.width is None
    order = rows.order if written.inputs.width is not None and is_asked_by_name else None
    signature = replace(signature, model=written.inputs, order=order)
    if not written.outputs or "" in written.outputs:
        return replace(signature, output=written.outputs.get(""))
    left = dict(written.outputs)
    first = left.pop(target.label)
    heads = {
        each.label: (ProblemOutputs(each.problem, each.classes, f"{each.label}_"), left.pop(each.label))
        for each in target.more
    }
    return replace(signature, output=first, heads=heads, passed=left)


def _prove(
    folder: Path,
    form: str,
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
        message = f"the exported model ({form}) does not load: {error}".replace(f"{folder}/", "")
        raise NotExportable(message, "use another estimator, or another step") from error
    try:
        return answers.compare(
            lambda sample: servable.predict(sample.arrays(signature.model)), form, tolerance, probabilities
        )
    finally:
        servable.close()


def _open(folder: Path, form: str) -> LocalServable:
    return cast(LocalServable, load_extension(MODEL_FORMATS, form).open("export", 1, folder, ModelOptions()))


def _refusal(errors: Sequence[NotExportable | Differs], framework: Framework, model: Any, others: Sequence[str]) -> str:
    """Returns the message of a failed export; ``others`` are the formats that were not tried."""
    last = errors[-1]
    part = framework.inexact_part(model, last.rows) if isinstance(last, Differs) and last.rows is not None else None
    advice = [f"{part} is converted inexactly"] if part else []
    advice.append(last.advice)
    advice += [f"set fall_back=True to store the estimator itself with {other}" for other in others]
    return f"{', and '.join(map(str, errors))}. {'; '.join(advice)}"


def _versions(framework: Framework, form: str) -> dict[str, str]:
    names = [*framework.distributions, *load_extension(MODEL_FORMATS, form).distributions]
    versions = {}
    for name in names:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions
