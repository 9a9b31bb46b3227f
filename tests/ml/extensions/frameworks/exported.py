"""Tables to train on, exports of estimators, and the answers of exported models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.datasets import load_wine

from airflow_hops.core.artifacts.target import Target
from airflow_hops.ml.models.export import export_model
from airflow_hops.serving.models.formats import ModelOptions, open_model

PRICE = Target("price", "regression")
WINE = Target("wine", "multiclass", ("barolo", "grignolino", "barbera"))
LATE = Target("late", "binary")
OUTPUTS = {PRICE: "prediction", WINE: "probabilities", LATE: "probability"}

NAMES = [f"m{number}" for number in range(13)]
_wine, _grapes = load_wine(return_X_y=True)
X, GRAPES = _wine.astype(np.float32), _grapes
WINES = pd.DataFrame(X, columns=NAMES)


def flights(rows: int = 60) -> tuple[pd.DataFrame, Any]:
    """Columns of each type, and which flights are late."""
    table = pd.DataFrame(
        {
            "carrier": np.array(["AA", "UA", "DL"], object)[np.arange(rows) % 3],
            "distance": np.linspace(0, 1, rows, dtype=np.float32),
            "hour": np.arange(rows) % 24,
        }
    )
    return table, ((table.distance > 0.4) ^ (table.carrier == "UA")).astype(int)


def export(model: Any, folder: Path, target: Target, sample: Any, framework: str = "sklearn", **options: Any) -> Any:
    return export_model(model, folder, framework=framework, target=target, sample=sample, **options)


def ask(folder: Path, rows: pd.DataFrame) -> dict[str, Any]:
    columns = {
        name: np.array([value.encode() for value in column], object) if column.dtype == object else column.to_numpy()
        for name, column in rows.items()
    }
    servable: Any = open_model("m", 1, folder, ModelOptions())
    try:
        result: dict[str, Any] = servable.predict(columns)
        return result
    finally:
        servable.close()


def assert_answers(model: Any, folder: Path, target: Target, rows: pd.DataFrame, given: Any = None) -> None:
    """Asserts that an exported model answers as the trained one does, whose rows may be ``given`` in another form."""
    taken = rows if given is None else given
    expected = model.predict(taken) if target.problem == "regression" else model.predict_proba(taken)
    expected = expected[:, 1] if target.problem == "binary" else expected
    np.testing.assert_allclose(ask(folder, rows)[OUTPUTS[target]], expected, rtol=1e-4, atol=1e-5)
