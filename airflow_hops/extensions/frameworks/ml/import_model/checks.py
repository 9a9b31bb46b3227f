"""Checks an imported model's predictions on rows of the examples."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from airflow_hops.core.artifacts.target import MULTICLASS, REGRESSION, Target
from airflow_hops.core.errors import BadInput
from airflow_hops.extensions.frameworks.serving.scikit_learn import chosen_classes
from airflow_hops.ml.features.predictions import check_predictions
from airflow_hops.ml.features.raw_features import check_columns, read_rows
from airflow_hops.ml.metrics.scoring import ScoredModel
from airflow_hops.ml.models.export import TOLERANCE
from airflow_hops.ml.models.probe_rows import Array
from airflow_hops.ml.models.proof import Differs, check_rows_apart

log = logging.getLogger(__name__)


def check_model(
    folder: Path, files: Sequence[Path], target: Target, *, rows: int, source: str
) -> tuple[ScoredModel, int]:
    """Loads a model and checks its predictions for up to ``rows`` rows; returns it with the number of rows.

    The classes of ``target`` are in the order of the model's outputs.

    Raises:
        BadInput: the model does not load, predicts something else, needs a missing column, does not return numbers, or
            answers a row otherwise alone, among others, or when it is asked again.
    """
    model = ScoredModel(folder)
    return model, _check_predictions(model, files, target, rows=rows, source=source)


def more_labels(
    model: ScoredModel, files: Sequence[Path], target: Target, *, rows: int, source: str
) -> tuple[Target, ...]:
    """Returns the further labels that the model predicts, after checking them; logs a warning for the others."""
    heads = {each: model.head(target.output_prefix(each.label)) for each in target.more}
    for each, head in heads.items():
        if head is None:
            log.warning("the model has no output for the label %r, and will not be evaluated on it", each.label)
        else:
            _check_predictions(head, files, each, rows=rows, source=source)
    return tuple(each for each, head in heads.items() if head is not None)


def _check_predictions(model: ScoredModel, files: Sequence[Path], target: Target, *, rows: int, source: str) -> int:
    if model.problem != target.problem:
        raise BadInput(
            f"source {source!r}: the model's output {model.output!r} is for {model.problem} problems; the examples' "
            f"label {target.label!r} needs one for {target.problem}"
        )
    if target.problem == MULTICLASS and model.classes != len(target.classes or ()):
        raise BadInput(
            f"source {source!r}: the model distinguishes {model.classes} classes, the examples have "
            f"{len(target.classes or ())}: {', '.join(target.classes or ())}"
        )
    for name in target.dtypes:
        if name in model.inputs:
            raise BadInput(
                f"source {source!r}: the model takes {name!r}, the label or the weight of the examples, which "
                "requests do not contain; train the model without it"
            )
    check_columns(files[0], model.inputs, of=f"the signature of {source!r}")
    asked = 0
    for arrays, batch in read_rows(files, model.inputs, batch_rows=rows):
        result = model.predict(arrays)
        check_predictions(result, target.problem, f"source {source!r}: {model.output!r}")
        if target.problem == MULTICLASS and (predicted := model.likeliest(arrays)) is not None:
            expected = np.array(target.classes, object)[result.argmax(axis=1)]
            if (other := predicted != expected).any():
                raise BadInput(
                    f"source {source!r}: the model calls a class {predicted[other][0]!r} that the examples call "
                    f"{expected[other][0]!r}; prepare them with classes=[…] in the model's own order"
                )
        chosen = chosen_classes(model.path, arrays) if target.problem == MULTICLASS else None
        if chosen is not None and len(other := np.flatnonzero(chosen != result.argmax(axis=1))):
            raise BadInput(
                f"source {source!r}: the served class is the likeliest, and the estimator's predict() chooses "
                f"another one in {len(other)} of {len(chosen)} rows, such as row {other[0]}: wrap it in "
                "sklearn.calibration.CalibratedClassifierCV, or scale the features if probabilities are tied"
            )
        if not asked:
            _check_rows_apart(model, arrays, result, target, source)
        asked += batch.num_rows
        if asked >= rows:
            break
    if not asked:
        raise BadInput(f"{files[0].parent}: there are no rows to check the model of {source!r} on")
    return asked


def _check_rows_apart(
    model: ScoredModel, arrays: Mapping[str, Array], whole: Array, target: Target, source: str
) -> None:
    def ask(rows: Array) -> Mapping[str, Array]:
        return {model.output: model.predict({name: values[rows] for name, values in arrays.items()})}

    what, labels = f"source {source!r}: the model", range(len(whole))
    probabilities = set() if target.problem == REGRESSION else {model.output}
    try:
        check_rows_apart(ask, {model.output: whole}, what, TOLERANCE, probabilities, labels)
    except Differs as error:
        raise BadInput(f"{error}. {error.advice}") from error


def unzip_probabilities(file: Path) -> None:
    """Replaces maps of probabilities (ZipMap) in an ONNX file by the tensor they are made from."""
    import onnx
    from google.protobuf.message import DecodeError

    try:
        model = onnx.load(file, load_external_data=False)
    except DecodeError:
        return  # an attempt to load it reports the error
    graph = model.graph
    tensors = {node.output[0]: node.input[0] for node in graph.node if node.op_type == "ZipMap"}
    if not tensors:
        return
    for node in [node for node in graph.node if node.op_type == "ZipMap"]:
        graph.node.remove(node)
    for output in [output for output in graph.output if output.name in tensors]:
        # Keeps the name, by which the user may have chosen the prediction.
        graph.node.append(onnx.helper.make_node("Identity", [tensors[output.name]], [output.name]))
        output.CopyFrom(onnx.helper.make_tensor_value_info(output.name, onnx.TensorProto.FLOAT, None))
    onnx.save(model, file)
