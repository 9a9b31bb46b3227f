"""The contracts of frameworks and model formats."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
from sklearn.linear_model import LinearRegression

from airflow_hops.core.contract.target import Target
from airflow_hops.extensions.frameworks import scikit_learn
from airflow_hops.ml.models.export import export_model
from airflow_hops.testing.frameworks import FrameworkContract, TrainedCase
from airflow_hops.testing.model_formats import ModelFormatContract

NUMBERS = np.random.default_rng(0).normal(size=(40, 2)).astype(np.float32)
SUMS = NUMBERS.sum(axis=1)


class TestScikitLearn(FrameworkContract):
    framework = "sklearn"

    def train(self) -> TrainedCase:
        return TrainedCase(LinearRegression().fit(NUMBERS, SUMS), NUMBERS, Target("sum", "regression"), ("a", "b"))


class TestEstimators(ModelFormatContract):
    format = "skops"
    rows = {"inputs": NUMBERS[:3].astype(np.float64)}

    def write(self, folder: Path) -> None:
        scikit_learn.save(LinearRegression().fit(NUMBERS, SUMS), folder / "saved", NUMBERS.astype(np.float64))
        shutil.copytree(folder / "saved", folder, dirs_exist_ok=True)


class TestOnnx(ModelFormatContract):
    format = "onnx"
    rows = {"a": NUMBERS[:3, 0], "b": NUMBERS[:3, 1]}

    def write(self, folder: Path) -> None:
        model, target = LinearRegression().fit(NUMBERS, SUMS), Target("sum", "regression")
        export_model(model, folder, framework="sklearn", target=target, sample=NUMBERS, order=("a", "b"))
        shutil.copytree(folder / "onnx", folder, dirs_exist_ok=True)
