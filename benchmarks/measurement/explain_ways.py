"""Contributions of this package, through the served graph of a model.

``python -m benchmarks.measurement.explain_ways trees forest <folder>``, for :mod:`benchmarks.measurement.timing`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measurement.explained_models import FEW_ROWS, model_and_rows
from benchmarks.measurement.worker import Work, perform


def trees(name: str, folder: str) -> Work:
    """By the trees of the graph, in the batches of ``ReasonsOperator``."""
    return _explained(name, folder, by_trees=True)


def sampled(name: str, folder: str) -> Work:
    """By asking the graph, as if it had no trees."""
    return _explained(name, folder, by_trees=False)


def _explained(name: str, folder: str, *, by_trees: bool) -> Work:
    import pandas as pd

    from airflow_hops.core.artifacts.target import REGRESSION, Target
    from airflow_hops.extensions.explain.ml.shapley import Explainer
    from airflow_hops.extensions.explain.ml.tree_models import TreeModel
    from airflow_hops.ml.metrics.scoring import ScoredModel
    from airflow_hops.ml.models.export import export_model

    model, rows, background = model_and_rows(name)
    columns = [f"x{number}" for number in range(rows.shape[1])]
    scratch, made = Path(tempfile.mkdtemp()), [0]
    sample = pd.DataFrame(rows[:200], columns=columns)
    export_model(model, scratch / "model", framework="sklearn", target=Target("y", REGRESSION), sample=sample)
    served = ScoredModel(scratch / "model" / "onnx")

    def predict(arrays: Mapping[str, Any]) -> Any:
        made[0] += len(arrays[columns[0]])
        return served.predict(arrays).astype(np.float64)

    def arrays_of(matrix: Any) -> dict[str, Any]:
        return dict(zip(columns, matrix.T, strict=True))

    def explain() -> Mapping[str, Any]:
        explainer = Explainer(predict, arrays_of(background))
        if by_trees:
            of_background = explainer.background_predictions
            explainer.trees = TreeModel(served, scratch, explainer.background, of_background, log_odds=False)
        chosen = rows if by_trees else rows[:FEW_ROWS]
        explained = explainer.explain(arrays_of(chosen))
        values = np.stack([contributions.values for contributions in explained])
        np.save(Path(folder) / f"ours_{name}_{'trees' if by_trees else 'sampled'}.npy", values)
        gap = max(
            abs(contributions.base + contributions.values.sum() - contributions.prediction)
            for contributions in explained
        )
        needed = len(chosen) * explainer.predictions_per_row + len(background)
        return {"rows": len(chosen), "gap": float(gap), "predictions": made[0], "needed": needed}

    return explain


if __name__ == "__main__":
    perform({"trees": trees, "sampled": sampled})
