"""Imports a model that was trained elsewhere, in a folder or in MLflow, as a ``model`` artifact."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from airflow_hops.core.artifacts.artifact import Artifact, RowCounts
from airflow_hops.core.artifacts.properties import SAVED_MODEL, ExamplesProperties, ModelProperties
from airflow_hops.core.artifacts.target import Target
from airflow_hops.core.errors import BadInput, HopsError
from airflow_hops.core.processes.remote_files import open_url, without_markers
from airflow_hops.core.redaction import redacted
from airflow_hops.core.serving_api import tensors
from airflow_hops.extensions.frameworks.ml.import_model.checks import check_model, more_labels, unzip_probabilities
from airflow_hops.extensions.frameworks.serving.mlflow_signature import MLFLOW_FILE, read_estimator_inputs
from airflow_hops.extensions.frameworks.serving.onnx import MODEL_FILE, graph_inputs, graph_labels
from airflow_hops.extensions.frameworks.serving.scikit_learn import estimator_labels
from airflow_hops.ml.features.transform_graph import SIGNATURE
from airflow_hops.ml.models.mlflow_model import described_model
from airflow_hops.ml.readers.artifact_files import example_files
from airflow_hops.ml.step.context import StepContext
from airflow_hops.ml.tracking.client import mlflow_errors, open_tracking
from airflow_hops.serving.errors import ServingError
from airflow_hops.serving.models.model_signature import (
    SIGNATURE_FILE,
    TRANSFORM_GRAPH,
    EstimatorInputs,
    ModelSignature,
    SignatureFileError,
    read_signature,
)
from airflow_hops.serving.models.signature_defs import ProblemOutputs

ONNX, SKOPS = "onnx", "skops"
"""Registered names of formats."""
_MLFLOW_SCHEMES = ("models:/", "runs:/", "mlflow-artifacts:/")
_PICKLES = (".pkl", ".pickle", ".joblib", ".pt", ".pth", ".bin")
_ONNX_DATA = (".data", ".onnx_data", ".weights")
_PARTS: Mapping[str, tuple[str, ...]] = {
    SAVED_MODEL: ("variables", "assets", "assets.extra", "fingerprint.pb"),
    ONNX: (TRANSFORM_GRAPH, SIGNATURE_FILE),
    SKOPS: (TRANSFORM_GRAPH, SIGNATURE_FILE),
}
"""Files of a model besides its main file, by format; the folder may hold unrelated files, too."""
_DEPTH = 3


def run(
    context: StepContext,
    *,
    source: str,
    features: Sequence[str] | None = None,
    prediction: str | None = None,
    framework: str | None = None,
    split: str | None = None,
    rows: int = 1000,
) -> Artifact:
    """Writes the artifact ``model`` after the model has predicted rows of the examples.

    Parameters are those of ``ImportModelOperator``. Inputs are ``examples`` and, optionally, ``statistics`` and
    ``schema``.

    Raises:
        BadInput: the source has no model that can serve, or the model does not match the examples.
        HopsError: the source cannot be read at the moment.
    """
    examples = context.input("examples")
    data = ExamplesProperties.of(examples)
    target = data.target
    values = fetch_source(source, context, context.scratch / "source")
    file = find_model(values, source)
    form = _format_of(file)
    with context.output() as writer:
        folder = writer.path / form
        copy_model(file, folder)
        if form != SAVED_MODEL:
            target = _write_signature(file, folder, target, features, prediction)
        elif features is not None or prediction is not None:
            raise BadInput(
                "features and prediction are for ONNX graphs and estimators; a SavedModel has its own signature"
            )
        split = split or data.splits[-1]
        files = example_files(context.local("examples"), split)
        model, asked = check_model(folder, files, target, rows=rows, source=source)
        report = replace(target, more=more_labels(model, files, target, rows=rows, source=source))
        inputs = tuple(model.inputs)
        asked_for = {"split": split, "rows": asked}
        record = {"source": redacted(source), "format": form, "file": file.name, **asked_for}
        (writer.path / "import.json").write_text(json.dumps(record, indent=1) + "\n")
        return writer.commit(
            rows={split: RowCounts(asked, asked)},
            properties=ModelProperties.made_of(
                data,
                report,
                context.spec.inputs,
                signature=SIGNATURE,
                ranks=1,
                synchronized=True,  # there is only one copy of its weights
                features=tuple(name for name in inputs if name != data.time),
                inputs=inputs,
                format=form,
                framework=framework or _framework(file),
            ).to_dict(),
        )


def fetch_source(source: str, context: StepContext, folder: Path) -> Path:
    """Returns a local folder with the files of a source; remote files are copied to ``folder``.

    Args:
        source: A folder (a path, or any URI that fsspec opens), or a model of MLflow (``models:/name/3``).
        context: The step, for the URI of MLflow and the options of the store.
        folder: Folder for copies.

    Raises:
        BadInput: the source does not exist.
        HopsError: MLflow or the store fails.
    """
    if source.startswith(_MLFLOW_SCHEMES):
        tracking_uri = context.spec.services.get("tracking_uri", "")
        client = open_tracking(tracking_uri)
        import mlflow

        folder.mkdir(parents=True)
        with mlflow_errors(client):
            mlflow.set_tracking_uri(tracking_uri)
            fetched = Path(mlflow.artifacts.download_artifacts(artifact_uri=source, dst_path=str(folder)))
        return described_model(fetched, context.store) or fetched
    # fsspec 2026.9: would follow a local folder's links.
    if "://" not in (local := source.removeprefix("file://")):
        path = Path(local).expanduser()
        if not path.is_absolute():
            raise BadInput(
                f"source is {source!r}; expected an absolute path, a URI, or a model of MLflow (models:/name/3)"
            )
        if not path.exists():
            raise BadInput(f"source {source!r}: there is no such file or folder")
        return path
    options = context.store.storage_options if source.partition("://")[0] in context.store.root else {}
    try:
        files, path_there = open_url(source, options)
        if not files.exists(path_there):
            raise BadInput(f"source {source!r}: there is no such file or folder")
        folder.mkdir(parents=True)
        if files.isdir(path_there):
            entries = without_markers(files.find(path_there, detail=True).values())
            paths = {entry["name"]: entry["name"].removeprefix(path_there.rstrip("/")) for entry in entries}
            files.get([*paths], [f"{folder}{path}" for path in paths.values()])
        else:
            files.get(path_there, f"{folder}/")
    except (OSError, ValueError, ImportError) as error:
        raise HopsError(f"source {source!r} cannot be read ({type(error).__name__}: {error})") from error
    return folder


def find_model(root: Path, source: str) -> Path:
    """Returns the main file of the model in a folder or its subfolders that is nearest to the top.

    Raises:
        BadInput: the source has no model, several models, or a pickle.
    """
    if root.is_file():
        return _only([root], source)
    folders, seen = [root], list[Path]()
    for _ in range(_DEPTH):
        inside = [file for folder in folders for file in sorted(folder.iterdir())]
        for path in inside:  # its author may not have the worker's permissions
            is_read = path.is_dir() or path.name == MLFLOW_FILE
            if is_read and not path.resolve().is_relative_to(root.resolve()):
                raise BadInput(f"source {source!r}: {path} is a link that leads out of it; replace it with a copy")
        seen += [file for file in inside if file.is_file()]
        if any(map(_format_of, seen)):
            break
        folders = [path for path in inside if path.is_dir() and not path.is_symlink() and path.name != TRANSFORM_GRAPH]
    return _only(seen, source)


def _format_of(file: Path) -> str:
    """Returns the format of a model with this main file; empty for any other file."""
    formats = {"saved_model.pb": SAVED_MODEL, ".onnx": ONNX, ".skops": SKOPS}
    return formats.get(file.name) or formats.get(file.suffix) or ""


def _only(seen: Sequence[Path], source: str) -> Path:
    models = [file for file in seen if _format_of(file)]
    if len(models) > 1:
        names = ", ".join(file.name for file in models)
        raise BadInput(f"source {source!r} holds several models: {names}; name the folder or the file of one")
    if models:
        return models[0]
    pickles = [file.name for file in seen if file.suffix in _PICKLES]
    if pickles:
        raise BadInput(
            f"source {source!r} holds {pickles[0]}, a pickle, which runs whatever code it holds when it is loaded, and "
            "is refused. If you trust the model, load it where it was made, and export it: "
            "airflow_hops.hops.export_model writes an ONNX graph of an estimator of scikit-learn, XGBoost or LightGBM, "
            "or of a torch.nn.Module; skops.io.dump an estimator of scikit-learn; mlflow.onnx.log_model logs the graph "
            "to MLflow"
        )
    names = ", ".join(file.name for file in seen[:10]) or "nothing"
    raise BadInput(f"source {source!r}: expected a saved_model.pb, a .onnx or a .skops file in it; there is {names}")


def copy_model(file: Path, folder: Path) -> None:
    """Copies a model's files under the names that the model server expects; MLflow's descriptions are left out.

    Raises:
        BadInput: a file is a link, which may lead anywhere.
    """
    form = _format_of(file)
    copied = {file: file.name if form == SAVED_MODEL else f"model.{form}"}
    for path in sorted(file.parent.iterdir()):
        if path.name in _PARTS[form] or (form == ONNX and path.suffix in _ONNX_DATA):
            copied[path] = path.name
    for path in [inner for top in copied for inner in (top, *top.rglob("*"))]:
        if path.is_symlink():
            raise BadInput(f"{path} is a link; expected files only: replace it with a copy of its target")
    folder.mkdir(parents=True)
    for path, name in copied.items():
        (shutil.copytree if path.is_dir() else shutil.copyfile)(path, folder / name)


def _write_signature(
    file: Path, folder: Path, target: Target, features: Sequence[str] | None, prediction: str | None
) -> Target:
    """Writes or completes ``signature.json``; returns the target with classes in the order of the outputs."""
    known, form = None, _format_of(file)
    if (folder / SIGNATURE_FILE).is_file():
        if features is not None or prediction is not None:
            raise BadInput(f"features and prediction are in {file.parent / SIGNATURE_FILE} already; leave them out")
        try:
            known = read_signature(folder)
        except SignatureFileError as error:
            raise BadInput(f"source {file.parent / SIGNATURE_FILE} cannot be used ({error})") from error
    if known is not None and known.outputs is not None:
        heads = known.heads
        more = (
            replace(further, classes=_in_order(heads[further.label][0].classes, further))
            if further.label in heads
            else further
            for further in target.more
        )
        return replace(target, classes=_in_order(known.outputs.classes, target), more=tuple(more))
    labels = (graph_labels if form == ONNX else estimator_labels)(folder)
    if form == ONNX:
        unzip_probabilities(folder / MODEL_FILE)
    outputs = ProblemOutputs(target.problem, _in_order(labels, target))
    if known is None:
        taken = _graph_inputs(folder) if form == ONNX else _estimator_inputs(file.parent, features)
        requests, order = taken, None
        if taken.width is not None:
            if features is None or len(features) != taken.width:
                raise BadInput(
                    f"the model of {file.name} takes a matrix of {taken.width} columns, and features names "
                    f"{'none' if features is None else len(features)}; expected the columns of the examples that stand "
                    "in it, in their order"
                )
            (kind,) = taken.columns.values()
            requests, order = EstimatorInputs(dict.fromkeys(features, kind)), tuple(features)
        elif features is not None and form == ONNX:
            raise BadInput(f"the model of {file.name} takes {', '.join(taken.columns)} by name; leave features out")
        known = ModelSignature(requests, taken, order, None, prediction)
    (folder / SIGNATURE_FILE).write_text(replace(known, outputs=outputs).to_json())
    return replace(target, classes=outputs.classes)


def _in_order(names: Sequence[str] | None, target: Target) -> tuple[str, ...] | None:
    """Returns the classes in the model's order; the examples' order if the model has none or only numbers."""
    if not names or target.classes is None or list(names) == [str(number) for number in range(len(names))]:
        return target.classes
    if sorted(names) != sorted(target.classes):
        raise BadInput(
            f"the model's classes of {target.label!r} are {', '.join(names)}; the examples' are "
            f"{', '.join(target.classes)}: expected the same names, in any order, or the numbers 0, 1, … "
            "that the examples have for them"
        )
    return tuple(names)


def _graph_inputs(folder: Path) -> EstimatorInputs:
    try:
        return graph_inputs(folder)
    except (ServingError, ValueError) as error:
        raise BadInput(f"model.onnx does not load ({error})") from error


def _estimator_inputs(folder: Path, features: Sequence[str] | None) -> EstimatorInputs:
    try:
        return read_estimator_inputs(folder)
    except SignatureFileError as error:
        if features is None:
            raise BadInput(f"{error}; or name the columns of its matrix in features") from error
        return EstimatorInputs({"inputs": tensors.BY_NAME["float"]}, len(features))


def _framework(file: Path) -> str | None:
    """Returns the framework that trained a model, if its files contain it."""
    if _format_of(file) != ONNX:
        return "tensorflow" if _format_of(file) == SAVED_MODEL else "sklearn"
    description = file.parent / MLFLOW_FILE
    if description.is_file():
        import yaml

        try:
            flavors: Mapping[str, object] = (yaml.safe_load(description.read_text()) or {}).get("flavors") or {}
            names = list(flavors.keys())
        except (yaml.YAMLError, ValueError, AttributeError, RecursionError) as error:
            raise BadInput(
                f"source {description} cannot be used ({type(error).__name__}: {error}); correct it, or remove it and "
                "name the model's framework"
            ) from error
        known = [name for name in names if name not in ("python_function", "onnx")]
        return known[0] if known else None
    return None
