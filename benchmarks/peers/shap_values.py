"""The peer of explanations: the library shap on the same rows and models, in an environment of its own.

``python -m benchmarks.peers.shap_values trees forest <folder>``, for :mod:`benchmarks.measurement.timing`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measurement.explained_models import FEW_ROWS, model_and_rows
from benchmarks.measurement.worker import Work, perform


def trees(name: str, folder: str) -> Work:
    """``TreeExplainer``, interventional, which checks that contributions add up."""
    import shap

    model, rows, background = model_and_rows(name)

    def explain() -> Mapping[str, Any]:
        explainer = shap.TreeExplainer(model, background.astype(float), feature_perturbation="interventional")
        values = explainer.shap_values(rows.astype(float))
        np.save(Path(folder) / f"shap_{name}_trees.npy", values)
        return {"rows": len(rows)}

    return explain


def sampled(name: str, folder: str) -> Work:
    """``PermutationExplainer`` with four permutations and their reverses."""
    import shap

    model, rows, background = model_and_rows(name)
    made = [0]

    def predict(matrix: Any) -> Any:
        made[0] += len(matrix)
        return model.predict(matrix)

    def explain() -> Mapping[str, Any]:
        masker = shap.maskers.Independent(background, max_samples=len(background))
        explainer = shap.PermutationExplainer(predict, masker, seed=0)
        values = explainer(rows[:FEW_ROWS], max_evals=4 * (2 * rows.shape[1] + 1), silent=True).values
        np.save(Path(folder) / f"shap_{name}_sampled.npy", values)
        return {"rows": FEW_ROWS, "predictions": made[0]}

    return explain


if __name__ == "__main__":
    perform({"trees": trees, "sampled": sampled})
