"""The model of a new project: exported as trained, and no worse than a constant guess on noise."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import log_loss

from airflow_hops.core.artifacts.target import Target
from airflow_hops.extensions.projects.cli.project import project_files
from airflow_hops.extensions.projects.core.table_columns import ColumnDescription, TableDescription
from airflow_hops.ml.models.export import export_model


def _model_module(problem: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    roles = {"y": "label", "x0": "number", "x1": "number", "kind": "category"}
    columns = [ColumnDescription(name, "text", 0, "", role) for name, role in roles.items()]  # type: ignore[arg-type]
    table = TableDescription(100, True, columns, problem, None, {}, {}, "csv")
    files = project_files("made", "/rows.csv", "utf8", table)
    for name in ("features", "model"):
        module = ModuleType(f"made.{name}")
        monkeypatch.setitem(sys.modules, f"made.{name}", module)
        exec(files[f"{name}.py"], module.__dict__)
    return sys.modules["made.model"]


def _rows(rows: int) -> Any:
    random = np.random.default_rng(1)
    values = random.normal(size=(rows, 2)).astype(np.float32)
    values[random.random(values.shape) < 0.1] = np.nan
    return pd.DataFrame(values, columns=["x0", "x1"]).assign(kind=random.choice(["a", "b", "", "ü"], rows)), random


@pytest.mark.slow
@pytest.mark.parametrize(("problem", "kind"), [("binary", "linear"), ("regression", "trees")])
def test_served_model_predicts_as_trained(
    problem: str, kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rows, random = _rows(300)
    signal = rows.x0.fillna(0) if kind == "linear" else np.sign(rows.x0.fillna(1) * rows.x1.fillna(1))
    noisy = signal + random.normal(size=len(rows)) * (1 if kind == "linear" else 0.1)
    labels = noisy if problem == "regression" else (noisy > 0).astype(int)
    model = _model_module(problem, monkeypatch).fit(rows, np.asarray(labels), np.ones(len(rows)))
    assert type(model[-1]).__name__.startswith("HistGradient" if kind == "trees" else "Logistic")
    target = Target("y", problem)
    export_model(model, tmp_path / "onnx", framework="sklearn", target=target, sample=rows)


@pytest.mark.slow
def test_noise_gives_constant_predictions(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, random = _rows(600)
    labels = random.integers(0, 2, len(rows))
    model = _model_module("binary", monkeypatch).fit(rows[:100], labels[:100])
    assert log_loss(labels[100:], model.predict_proba(rows[100:])) < 0.70


@pytest.mark.slow
def test_rare_classes_and_few_rows_are_trained_on(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, _ = _rows(40)
    labels = np.array(["a", "b"] * 19 + ["c", "c"])
    fit = _model_module("multiclass", monkeypatch).fit
    assert list(fit(rows, labels).classes_) == ["a", "b", "c"]
    assert list(fit(rows[-4:], labels[-4:]).classes_) == ["a", "b", "c"]
