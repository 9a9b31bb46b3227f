"""Signatures of estimators: ``signature.json``, or else MLflow's ``MLmodel``."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from airflow_hops.core.serving_api import tensors
from airflow_hops.serving.models.model_signature import (
    MATRIX_INPUT,
    SIGNATURE_FILE,
    EstimatorInputs,
    ModelSignature,
    SignatureFileError,
    read_inputs,
    read_signature,
    reading_signature,
    with_columns,
)

MLFLOW_FILE = "MLmodel"

_MLFLOW_TYPES = {
    "boolean": "bool",
    "integer": "int32",
    "long": "int64",
    "float": "float",
    "double": "double",
    "string": "string",
}


def read_estimator_signature(folder: Path) -> ModelSignature:
    """Reads the signature of the estimator in a version folder.

    Raises:
        SignatureFileError: Both files are missing, or the file describes a model that cannot be served.
    """
    if (folder / SIGNATURE_FILE).is_file():
        return read_signature(folder)
    inputs = read_estimator_inputs(folder)
    return ModelSignature(inputs, inputs)


def read_estimator_inputs(folder: Path) -> EstimatorInputs:
    """Reads the inputs of the estimator in a version folder; errors are those of :func:`read_estimator_signature`."""
    path = folder / MLFLOW_FILE
    if (folder / SIGNATURE_FILE).is_file():
        return read_inputs(folder)
    if not path.is_file():
        raise SignatureFileError(
            f"{folder}: neither {SIGNATURE_FILE} nor {MLFLOW_FILE}; expected one that describes the estimator's inputs"
        )
    with reading_signature(path):
        return _from_mlflow(path.read_text())


def _from_mlflow(text: str) -> EstimatorInputs:
    import yaml

    try:
        signature = yaml.safe_load(text).get("signature")
    except yaml.YAMLError as error:
        raise ValueError(f"not YAML: {error}") from None
    if not signature:
        raise ValueError("the model was logged without a signature; log it with signature=infer_signature(…)")
    inputs = json.loads(signature["inputs"])
    if len(inputs) == 1 and inputs[0]["type"] == "tensor" and "name" not in inputs[0]:
        spec = inputs[0]["tensor-spec"]
        if len(spec["shape"]) != 2 or spec["shape"][1] < 1:
            raise ValueError(f"input has shape {spec['shape']}; expected [-1, width]")
        return EstimatorInputs({MATRIX_INPUT: tensors.type_of(np.empty(0, spec["dtype"]))}, spec["shape"][1])
    columns = {}
    for column in inputs:
        if column["type"] not in _MLFLOW_TYPES or "name" not in column:
            raise ValueError(f"input {column} cannot be served; expected a name and one of {', '.join(_MLFLOW_TYPES)}")
        columns[column["name"]] = tensors.BY_NAME[_MLFLOW_TYPES[column["type"]]]
    return with_columns(columns)
