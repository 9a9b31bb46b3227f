"""Finds the step of a Pipeline that a converter does not convert exactly, once the whole has been found to differ."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from airflow_hops.core.contract.target import REGRESSION, Target
from airflow_hops.core.processes.temporary_folders import temporary_folder
from airflow_hops.ml.models.onnx_converters import convert
from airflow_hops.ml.models.trained_models import Sample
from airflow_hops.serving.models.estimator_signature import SIGNATURE_FILE
from airflow_hops.serving.models.model_options import ModelOptions
from airflow_hops.serving.models.model_signature import ModelSignature

_TOLERANCE = 1e-4


def differing_step(model: Any, sample: Sample) -> str | None:
    """Names the first step of a scikit-learn Pipeline whose graph computes differently; None if that is not known.

    Args:
        model: The fitted model.
        sample: Rows for which its graph differs.
    """
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
        except Exception:  # a head may not convert in any way, though the whole did
            return None
        try:
            trained = head.transform(sample.rows)
        except Exception:  # as may an estimator refuse rows
            return described if served is not None else None
        trained = np.asarray(trained.toarray() if hasattr(trained, "toarray") else trained, np.float64)
        if served is None or served.shape != trained.shape:
            return described
        scale = np.maximum(1, np.abs(trained))
        differs = ~((np.abs(served - trained) <= _TOLERANCE * scale) | (np.isnan(served) & np.isnan(trained)))
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
    """Runs the graph of a Pipeline without its last steps; None if it refuses the rows."""
    from airflow_hops.serving.models.onnx import MODEL_FILE, OnnxServable

    graph = convert(head, sample, "sklearn", Target("none", REGRESSION))
    with temporary_folder("export") as folder:
        (Path(folder) / MODEL_FILE).write_bytes(graph.content)
        (Path(folder) / SIGNATURE_FILE).write_text(ModelSignature(graph.inputs, graph.inputs).to_json())
        servable = OnnxServable("step", 1, Path(folder), ModelOptions())
        try:
            served = servable.predict(sample.arrays(graph.inputs))[graph.outputs[""]]
        except Exception:  # an operator may refuse rows in any way
            return None
        finally:
            servable.close()
    return np.asarray(served, np.float64)
