"""Rows that estimators take, and the step of a Pipeline whose graph differs on some."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np

from airflow_hops.core.artifacts.target import REGRESSION, Target
from airflow_hops.core.errors import BadInput
from airflow_hops.core.processes.temporary_folders import temporary_folder
from airflow_hops.extensions.frameworks.ml.onnx_converters import Graph
from airflow_hops.extensions.frameworks.serving.formats import ONNX
from airflow_hops.ml.models.samples import Sample
from airflow_hops.ml.training.tables import SplitTable, plain_names
from airflow_hops.serving.models.formats import ModelOptions
from airflow_hops.serving.models.local import LocalServable
from airflow_hops.serving.models.model_signature import SIGNATURE_FILE, ModelSignature

GraphOf = Callable[[Any, Sample, Target], Graph]
_STEP_TOLERANCE = 1e-4


def estimator_rows(estimator: object, table: SplitTable) -> tuple[Any, Sequence[str]]:
    """Returns rows in the estimator's input format, and the features in the order of its columns.

    An estimator fitted on a data frame, or on data from :class:`SplitTable`, knows its features by name, and gets them
    in its own order. Any other gets them in the table's order.
    """
    names = [str(name) for name in getattr(estimator, "feature_names_in_", ())]
    has_vectors = table.names != list(table.specs)
    if names and not (has_vectors and names == table.names) and not _are_numbers(names, list(table.specs)):
        if has_vectors and set(names) <= set(table.names) and not set(names) <= set(table.specs):
            raise BadInput(
                f"{type(estimator).__name__} was trained on {len(names)} columns of frame(), not all "
                f"{len(table.names)} in their order, but a feature of several values stays one input when it serves; "
                "train it on matrix() of context.table(split, columns)"
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


def _in_order(names: list[str], there: list[str], estimator: object) -> list[str]:
    unknown = [name for name in names if name not in there]
    if unknown:
        raise BadInput(
            f"{type(estimator).__name__} was trained on {', '.join(map(repr, unknown))}, which requests to the served "
            f"model will lack: the features of the examples are {', '.join(there)}; make it in prepare() or in the "
            "transform, or in a Pipeline that is returned whole"
        )
    return names


def _booster_names(estimator: object) -> list[str]:
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


def differing_step(model: Any, sample: Sample, graph_of: GraphOf) -> str | None:
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
            served = _transformed(head, sample, graph_of)
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


def _transformed(head: object, sample: Sample, graph_of: GraphOf) -> np.ndarray | None:
    """Runs the graph of the first steps of a Pipeline; None if it refuses the rows."""
    graph = graph_of(head, sample, Target("none", REGRESSION))
    with temporary_folder("export") as folder:
        (folder / ONNX.files[0]).write_bytes(graph.content)
        (folder / SIGNATURE_FILE).write_text(ModelSignature(graph.inputs, graph.inputs).to_json())
        servable = cast(LocalServable, ONNX.open("export", 1, folder, ModelOptions()))
        try:
            served = servable.predict(sample.arrays(graph.inputs))[graph.outputs[""]]
        except Exception:  # an operator may refuse rows in any way
            return None
        finally:
            servable.close()
    return np.asarray(served, np.float64)
