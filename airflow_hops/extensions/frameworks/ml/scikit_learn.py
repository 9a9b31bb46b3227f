"""Stores scikit-learn models for the model server.

Example::

    from airflow_hops.extensions.frameworks import scikit_learn

    scikit_learn.save(estimator, "/srv/models/late_flights/1", sample=features.head(100))
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from airflow_hops.core.processes.files import staged
from airflow_hops.core.serving_api import tensors
from airflow_hops.extensions.frameworks.serving.skops_files import untrusted_types
from airflow_hops.serving.models.model_signature import MATRIX_INPUT, SIGNATURE_FILE, EstimatorInputs, ModelSignature


class UntrustedTypes(Exception):
    """An estimator holds types that skops does not trust."""


def save(estimator: Any, folder: str | os.PathLike[str], sample: Any, *, trusted_types: Sequence[str] = ()) -> Path:
    """Writes a version folder for the model server, completely or not at all.

    Args:
        estimator: A fitted estimator with ``predict``.
        folder: The version folder to create, ``<base path>/<version>``.
        sample: A data frame or a matrix ``[rows, width]`` like those that the estimator was fitted on; the model's
            signature is derived from it.
        trusted_types: Full names of types that skops does not trust by default: start the server with the same types in
            ``--trusted_skops_types``.

    Returns:
        The folder.

    Raises:
        FileExistsError: The folder exists already.
        ValueError: The estimator cannot predict the sample, or holds types that skops does not trust.
    """
    target = Path(folder)
    if target.exists():
        raise FileExistsError(f"{target}: exists already; a version is written once")
    inputs = inputs_of(sample)
    if not hasattr(estimator, "predict"):
        raise ValueError(f"{type(estimator).__name__} has no method predict")
    estimator.predict(sample)
    with staged(target) as staging:
        staging.mkdir()
        try:
            write_skops(estimator, staging, trusted_types)
        except UntrustedTypes as error:
            raise ValueError(
                f"{error}; name them in trusted_types and in the server's --trusted_skops_types"
            ) from error
        (staging / SIGNATURE_FILE).write_text(ModelSignature(inputs, inputs).to_json())
    return target


def write_skops(estimator: object, folder: Path, trusted_types: Sequence[str] = ()) -> None:
    """Writes ``model.skops`` to a folder; ``trusted_types`` add to those that skops trusts by default.

    Raises:
        UntrustedTypes: The estimator holds other types.
    """
    import skops.io

    skops.io.dump(estimator, folder / "model.skops")
    if unknown := untrusted_types(folder / "model.skops", trusted_types):
        raise UntrustedTypes(f"{type(estimator).__name__} holds types that skops does not trust: {', '.join(unknown)}")


def inputs_of(sample: Any) -> EstimatorInputs:
    """Returns the inputs of an estimator that was fitted on data like the sample.

    The sample is a data frame, or a matrix ``[rows, width]`` of numbers.

    Raises:
        ValueError: The sample is neither, or a column has a type that cannot be served.
    """
    if hasattr(sample, "columns"):
        return EstimatorInputs({str(name): _type_of_column(str(name), sample[name]) for name in sample.columns})
    matrix = np.asarray(sample)
    if matrix.ndim != 2:
        raise ValueError(f"the sample has shape {list(matrix.shape)}; expected a data frame, or a matrix [rows, width]")
    return EstimatorInputs({MATRIX_INPUT: tensors.type_of(matrix)}, matrix.shape[1])


def _type_of_column(name: str, column: Any) -> tensors.TensorType:
    values = column.to_numpy()
    if values.dtype == object and not all(isinstance(value, str) for value in values):
        raise ValueError(f"column {name!r} of the sample holds objects that are not strings; these have no tensor type")
    try:
        return tensors.type_of(values)
    except tensors.TensorError as error:
        raise ValueError(f"column {name!r} of the sample: {error}") from None
