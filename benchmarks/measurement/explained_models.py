"""Models and rows that explanations are measured with; NumPy and scikit-learn only, as both sides have them."""

from __future__ import annotations

from typing import Any

import numpy as np

FEATURES = 20
BACKGROUND_ROWS = 100
TRAINED_ROWS = 3000
FEW_ROWS = 20
"""Rows that are explained by asking the model, which takes thousands of predictions for each."""


def model_and_rows(name: str) -> tuple[Any, Any, Any]:
    """Returns a fitted model, float32 rows to explain ``[1000, features]``, and the background."""
    from sklearn.ensemble import GradientBoostingRegressor, RandomForestRegressor

    random = np.random.default_rng(8)
    x = random.normal(0, 1, (TRAINED_ROWS + 1000, FEATURES)).astype(np.float32)
    y = x[:, 0] * x[:, 1] + np.sin(3 * x[:, 2]) + 0.5 * (x[:, 3] > 0) * x[:, 4] + x[:, 5:10].sum(axis=1) / 5
    model = {
        "boosted": GradientBoostingRegressor(n_estimators=100, max_depth=5, random_state=0),
        "forest": RandomForestRegressor(50, max_depth=8, random_state=0),
    }[name]
    model.fit(x[:TRAINED_ROWS], y[:TRAINED_ROWS])
    return model, x[TRAINED_ROWS:], x[:BACKGROUND_ROWS]
