"""Loss on unseen rows of the model of ``airflow hops init``, of a constant guess, and of a linear model.

``python benchmarks/project_models.py`` writes a project for each of several small, wide, noisy and unbalanced tables,
fits its ``model.py``, and prints log losses, or for a regression mean squared errors. See ``README.md``.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
from sklearn.compose import make_column_transformer
from sklearn.dummy import DummyClassifier, DummyRegressor
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.metrics import log_loss, mean_squared_error
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

sys.path[0] = str(Path(__file__).resolve().parent.parent)

from airflow_hops.extensions.projects.cli.project import project_files  # noqa: E402
from airflow_hops.extensions.projects.core.table_columns import ColumnDescription, TableDescription  # noqa: E402

UNSEEN = 20_000


def tables() -> Iterator[tuple[str, str, int, pd.DataFrame, Any]]:
    """Yields name, problem, rows to train on, and features and labels of these and the unseen rows."""
    random = np.random.default_rng(0)

    def numbers(rows: int, columns: int) -> pd.DataFrame:
        values = random.normal(size=(rows + UNSEEN, columns))
        return pd.DataFrame(values, columns=[f"x{number}" for number in range(columns)])

    def drawn(scores: Any) -> Any:
        return (random.random(len(scores)) < 1 / (1 + np.exp(-scores))).astype(int)

    x = numbers(150, 5)
    yield "small", "binary", 150, x, drawn(x.x0 + x.x1 - x.x2)
    x = numbers(80, 8)
    yield "small, noise alone", "binary", 80, x, drawn(0 * x.x0)
    x = numbers(120, 100)
    yield "wide", "binary", 120, x, drawn(x.x0 + x.x1)
    x = numbers(200, 60)
    yield "wide, noise alone", "binary", 200, x, drawn(0 * x.x0)
    x = numbers(600, 20)
    yield "noisy", "binary", 600, x, drawn(0.3 * x.x0)
    x = numbers(2000, 6)
    yield "unbalanced, 2%", "binary", 2000, x, drawn(x.x0 + x.x1 - 5)
    x = numbers(1000, 10)
    yield "unbalanced noise, 1%", "binary", 1000, x, drawn(0 * x.x0 - 4.6)
    x = numbers(3000, 5)
    yield "interaction", "binary", 3000, x, drawn(3 * np.sign(x.x0 * x.x1))
    x = numbers(1500, 2).assign(c0=lambda x: random.integers(0, 700, len(x)).astype(str))
    yield "700 categories", "binary", 1500, x, drawn(x.x0 + (x.c0.astype(int) % 7 == 0))
    x = numbers(150, 8)
    yield (
        "four classes, small",
        "multiclass",
        150,
        x,
        np.argmax(x.to_numpy()[:, :4] + 2 * random.normal(size=(len(x), 4)), 1),
    )
    x = numbers(400, 6)
    y = drawn(x.x0 + x.x1)
    yield "gaps", "binary", 400, x.mask(random.random(x.shape) < 0.3), y
    x = numbers(100, 30)
    yield "regression, small and wide", "regression", 100, x, x.x0 + 2 * random.normal(size=len(x))
    x = numbers(200, 8)
    yield "regression, noise alone", "regression", 200, x, random.normal(size=len(x))
    x = numbers(2000, 5)
    yield "regression, interaction", "regression", 2000, x, x.x0 * x.x1 + 0.3 * random.normal(size=len(x))


def project_model(problem: str, features: pd.DataFrame) -> Any:
    """Returns the module ``model`` of a project for a table."""
    roles = {name: "category" if name.startswith("c") else "number" for name in features}
    columns = [ColumnDescription(name, "float", 0, "", role) for name, role in {**roles, "y": "label"}.items()]  # type: ignore[arg-type]
    table = TableDescription(100, True, columns, problem, None, {}, {}, "csv")
    files = project_files("measured", "/rows.csv", "utf8", table)
    for name in ("features", "model"):
        module = sys.modules[f"measured.{name}"] = ModuleType(f"measured.{name}")
        exec(files[f"{name}.py"], module.__dict__)
    return sys.modules["measured.model"]


def main() -> None:
    """Prints a line for each table."""
    print(f"{'table':28} {'ours':>8} {'constant':>8} {'linear':>8} {'seconds':>8}  model")
    sys.modules["measured"] = ModuleType("measured")
    for name, problem, rows, features, labels in tables():
        labels = np.asarray(labels)
        is_regression = problem == "regression"
        (x, y), (unseen, truth) = ((features[part], labels[part]) for part in (slice(rows), slice(rows, None)))

        def loss(model: Any, x: Any = unseen, y: Any = truth, is_regression: bool = is_regression) -> float:
            return float(
                mean_squared_error(y, model.predict(x)) if is_regression else log_loss(y, model.predict_proba(x))
            )

        texts = [column for column in x if column.startswith("c")]
        others = [column for column in x if column not in texts]
        encode = make_column_transformer((StandardScaler(), others), (OneHotEncoder(handle_unknown="ignore"), texts))
        linear = make_pipeline(encode, LinearRegression() if is_regression else LogisticRegression(max_iter=1000))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            began = time.monotonic()
            ours = project_model(problem, features).fit(x, y)
            seconds = time.monotonic() - began
            constant = (DummyRegressor() if is_regression else DummyClassifier()).fit(x, y)
            known = linear.fit(x.fillna(0), y)
            losses = loss(ours), loss(constant), loss(known, unseen.fillna(0))
        print(f"{name:28} {losses[0]:8.4f} {losses[1]:8.4f} {losses[2]:8.4f} {seconds:8.1f}  {ours[-1]}", flush=True)


if __name__ == "__main__":
    main()
