"""Exports models of registered frameworks, and describes exported models in ``training.json``."""

from __future__ import annotations

import hashlib
import logging
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from airflow_hops.core.artifacts.properties import SAVED_MODEL
from airflow_hops.core.errors import BadInput
from airflow_hops.core.profiles import locked_packages
from airflow_hops.ml.models.export import export_model
from airflow_hops.ml.models.frameworks import Framework, frameworks
from airflow_hops.ml.training.session import Session
from airflow_hops.ml.training.tables import SplitTable

KERAS = "keras"
_SAMPLE_ROWS = 4096
_EVAL = "eval"

log = logging.getLogger(__name__)


def export_estimator(estimator: object, framework: str, session: Session) -> dict[str, Any]:
    """Exports an estimator as a servable model, and compares the two on held-out rows.

    Args:
        estimator: The estimator; for several labels a dict of them by label.
        framework: Its name.
        session: The training, with its examples and the tables that were read.

    Returns:
        Entry of ``training.json``, as :func:`describe`.

    Raises:
        BadInput: it cannot be served.
    """
    source, data, options = session.source, session.data, session.options
    if source.target is None:
        raise BadInput(
            f"the train function returned an estimator of {framework}, but the training has no examples, which define "
            "what it predicts; give the operator examples, or return a keras.Model"
        )
    split = _EVAL if data.suffice(_EVAL) else "train"
    trained_on = dict(data.rows)
    table = data.table(split, data.columns)
    data.rows = trained_on  # rows read here are not part of the training
    sample, order = _common_rows(estimator, table, frameworks()[framework])
    graph = None if source.folder is None else source.folder / "transform_graph"
    exported = export_model(
        estimator,
        session.output,
        framework=framework,
        target=source.target,
        sample=sample[:_SAMPLE_ROWS],
        transform_graph=graph if graph is not None and graph.is_dir() else None,
        order=order,
        widths={name: spec.width for name, spec in table.specs.items() if spec.width is not None},
        tolerance=options.tolerance,
        fall_back=options.fall_back,
    )
    if exported.not_converted is not None:
        log.warning("stored with %s: %s", exported.format, exported.not_converted)
    inputs = list(exported.inputs)
    return describe(exported.format, framework, inputs, exported.versions, exported.largest_difference)


def describe_keras(inputs: list[str] | None, largest_difference: float | None = None) -> dict[str, object]:
    """Returns :func:`describe` of a Keras model."""
    versions = {}
    for name in ("tensorflow", "keras"):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return describe(SAVED_MODEL, KERAS, inputs, versions, largest_difference)


def describe(
    format: str,
    framework: str,
    inputs: list[str] | None,
    versions: Mapping[str, str],
    largest_difference: float | None = None,
) -> dict[str, object]:
    """Returns the entry of ``training.json`` for an exported model.

    Args:
        format: Its format, and its folder in the artifact.
        framework: Name of its framework.
        inputs: Inputs of requests; None for a model without examples.
        versions: Of the framework and the converter; packages that the environment adds are included.
        largest_difference: Between the trained model and the exported one, on held-out rows.
    """
    return {
        "format": format,
        "framework": framework,
        "inputs": inputs,
        "library_versions": {**versions, **own_packages()},
        "largest_difference": largest_difference,
    }


def own_packages() -> dict[str, str]:
    """Returns the packages that this environment adds to the runtime environment, with versions."""
    pairs = (line.partition("==") for line in locked_packages(Path(sys.prefix)))
    return {name: result for name, _, result in pairs if result}


def folder_checksum(folder: Path) -> str:
    """Returns the SHA-256 (hex) of the files in a folder."""
    digest = hashlib.sha256()
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        digest.update(f"{file.relative_to(folder)}\0".encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()


def _common_rows(estimator: object, table: SplitTable, framework: Framework) -> tuple[Any, Sequence[str]]:
    """Returns the rows that an estimator takes; for several by label, theirs must be the same."""
    if not isinstance(estimator, Mapping):
        return framework.rows(estimator, table)
    (first, (sample, order)), *others = ((label, framework.rows(each, table)) for label, each in estimator.items())
    for label, (other, other_order) in others:
        if type(other) is not type(sample) or list(other_order) != list(order):
            raise BadInput(
                f"the estimators of {first!r} and {label!r} take different columns, or one a data frame and the other "
                f"a matrix ({', '.join(order)}; {', '.join(other_order)}); train them on the same"
            )
    return sample, order
