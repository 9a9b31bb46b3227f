"""Exports estimators of frameworks other than Keras, and determines their inputs."""

from __future__ import annotations

import hashlib
import logging
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from airflow_hops.core.contract.artifacts import BadInput
from airflow_hops.core.contract.named_environment import locked_packages
from airflow_hops.core.contract.training import TrainingOptions
from airflow_hops.ml.models.export import export_model
from airflow_hops.ml.models.frameworks import frameworks
from airflow_hops.ml.training.context import TrainContext
from airflow_hops.ml.training.tables import SplitTable, plain_names

KERAS = "keras"
_SAMPLE_ROWS = 4096
_EVAL = "eval"

log = logging.getLogger(__name__)


def framework_of(value: Any) -> str | None:
    """Returns the framework of an estimator or of a dict of them by label: a base class's package; None if unknown.

    Raises:
        BadInput: the dict's estimators are of different frameworks.
    """
    if isinstance(value, Mapping):
        of_labels = {str(label): framework_of(each) for label, each in value.items()}
        if None in of_labels.values() or not of_labels:
            return None
        if len(set(of_labels.values())) > 1:
            listed = ", ".join(f"{label!r} {framework}" for label, framework in of_labels.items())
            raise BadInput(f"the estimators are of several frameworks: {listed}; train those of all labels with one")
        return next(iter(of_labels.values()))
    return next((name for name, framework in frameworks().items() if framework.owns(value)), None)


def export_estimator(
    estimator: Any, framework: str, context: TrainContext, options: TrainingOptions, output: Path
) -> dict[str, Any]:
    """Exports an estimator as a servable model, and compares the two on held-out rows.

    Args:
        estimator: The estimator; for several labels a dict of them by label.
        framework: Its name.
        context: Context of the training, with its examples and what was read from them.
        options: Options of the training.
        output: The artifact's folder.

    Returns:
        Entry of ``training.json``, as :func:`describe`.

    Raises:
        BadInput: it cannot be served.
    """
    if context.target is None:
        raise BadInput(
            f"the train function returned an estimator of {framework}, but the training was given no examples, which "
            "say what it predicts; give the operator examples, or return a keras.Model"
        )
    split = _EVAL if context.can_share(_EVAL) else "train"
    trained_on = dict(context.rows)
    table = context.table(split, context.columns_taken)
    context.rows = trained_on  # rows read here are not part of the training
    sample, order = _common_sample(estimator, table)
    graph = None if context.examples_dir is None else context.examples_dir / "transform_graph"
    exported = export_model(
        estimator,
        output,
        framework=framework,
        target=context.target,
        sample=sample[:_SAMPLE_ROWS],
        transform_graph=graph if graph is not None and graph.is_dir() else None,
        order=order,
        widths={name: spec.width for name, spec in table.specs.items() if spec.width is not None},
        tolerance=options.tolerance,
        fall_back=options.fall_back,
    )
    if exported.not_converted is not None:
        log.warning("stored with skops: %s", exported.not_converted)
    inputs = list(exported.inputs)
    return describe(exported.format, framework, inputs, exported.versions, exported.largest_difference)


def describe_keras(inputs: list[str] | None, largest_difference: float | None = None) -> dict[str, Any]:
    """Returns :func:`describe` of a Keras model."""
    versions = {}
    for name in ("tensorflow", "keras"):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return describe("saved_model", KERAS, inputs, versions, largest_difference)


def describe(
    format: str,
    framework: str,
    inputs: list[str] | None,
    versions: Mapping[str, str],
    largest_difference: float | None = None,
) -> dict[str, Any]:
    """Returns the entry of ``training.json`` for an exported model.

    Args:
        format: Its folder in the artifact: ``saved_model``, ``onnx`` or ``skops``.
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


def _common_sample(estimator: Any, table: SplitTable) -> tuple[Any, Sequence[str]]:
    """Returns :func:`_sample` of an estimator; for several by label, theirs must be the same."""
    if not isinstance(estimator, Mapping):
        return _sample(estimator, table)
    (first, (sample, order)), *others = ((label, _sample(each, table)) for label, each in estimator.items())
    for label, (other, other_order) in others:
        if type(other) is not type(sample) or list(other_order) != list(order):
            raise BadInput(
                f"the estimators of {first!r} and {label!r} take different columns, or one a data frame and the other "
                f"a matrix ({', '.join(order)}; {', '.join(other_order)}); train them on the same"
            )
    return sample, order


def _sample(estimator: Any, table: SplitTable) -> tuple[Any, Sequence[str]]:
    """Returns rows in the estimator's input format, and the features in the order of its columns.

    An estimator fitted on a data frame, or on data from :class:`SplitTable`, knows its features by name, and gets them
    in its own order. Any other gets them in the table's order.
    """
    framework = framework_of(estimator)
    if framework is not None and frameworks()[framework].takes_frame:
        return table.frame(), list(table.specs)
    names = [str(name) for name in getattr(estimator, "feature_names_in_", ())]
    has_vectors = table.names != list(table.specs)
    if names and not (has_vectors and names == table.names) and not _are_numbers(names, list(table.specs)):
        if has_vectors and set(names) <= set(table.names) and not set(names) <= set(table.specs):
            raise BadInput(
                f"{type(estimator).__name__} was trained on {len(names)} columns of frame(), not all "
                f"{len(table.names)} in their order, but a feature of several values comes whole when it "
                "serves; train it on matrix() of context.table(split, columns)"
            )
        return table.frame()[_in_order(names, list(table.specs), estimator)], names
    names = _booster_names(estimator)
    plain = plain_names(table.names)
    if names and not _are_numbers(names, plain) and names != plain:
        ordered = _in_order(names, plain, estimator)
        scalars = dict(zip(plain, table.names, strict=True))
        order = [scalars[name] for name in ordered]
        if set(order) - set(table.specs):
            raise BadInput(
                f"{type(estimator).__name__} was trained on features in the order {', '.join(names)}, but features of "
                f"several values stand together when it serves: {', '.join(plain)}; train it on matrix()"
            )
        return table.frame()[order].to_numpy("float32"), order
    width = getattr(estimator, "n_features_in_", None)
    if width is not None and int(width) != len(table.names):
        raise BadInput(
            f"{type(estimator).__name__} was trained on {width} columns, but the features are {len(table.names)}: "
            f"{', '.join(table.names)}; read what it is trained on with context.table(split, columns), or use frame(), "
            "whose columns have names"
        )
    return table.matrix(), list(table.specs)


def _in_order(names: list[str], there: list[str], estimator: Any) -> list[str]:
    unknown = [name for name in names if name not in there]
    if unknown:
        raise BadInput(
            f"{type(estimator).__name__} was trained on {', '.join(map(repr, unknown))}, which will not be there when "
            f"it serves: the features of the examples are {', '.join(there)}; make it in prepare() or in the "
            "transform, or in a Pipeline that is returned whole"
        )
    return names


def _booster_names(estimator: Any) -> list[str]:
    """Returns the feature names of boosted trees, if they have any."""
    booster = estimator
    for attribute in ("booster_", "get_booster"):
        booster_of = getattr(estimator, attribute, None)
        booster = booster_of() if callable(booster_of) else booster_of if booster_of is not None else booster
    names = getattr(booster, "feature_name", None) or getattr(booster, "feature_names", None)
    return [str(name) for name in (names() if callable(names) else names) or ()]


def _are_numbers(names: Sequence[str], there: Sequence[str]) -> bool:
    """Returns whether names are columns numbered by a library (``Column_0``, ``f0``), and not features."""
    return not set(names) <= set(there) and all(
        name in (f"Column_{number}", f"f{number}", str(number)) for number, name in enumerate(names)
    )
