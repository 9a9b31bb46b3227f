"""Drift of predictions: also where features move together, each within its bounds."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf
from echo_models import write_echo_model

from airflow_hops.core.contract.artifacts import BadInput
from airflow_hops.core.contract.skew import SkewTest
from airflow_hops.ml.metrics.scoring import ServedModel
from airflow_hops.ml.monitoring.skew import detect_skew
from airflow_hops.ml.monitoring.skew.predictions import compare_predictions
from airflow_hops.ml.monitoring.skew.windows import OwnWindows


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ServedModel:
    """A model that multiplies both of its inputs."""

    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, name) for name in ("x", "y")])
    def serve(x: Any, y: Any) -> Any:
        return {"prediction": x * y}

    module = tf.Module()
    module.serve = serve
    folder = tmp_path_factory.mktemp("model")
    tf.saved_model.save(module, str(folder), signatures={"serving_default": serve})
    return ServedModel(folder)


def rows(count: int, seed: int, *, correlation: float = 0.0) -> pa.Table:
    random = np.random.default_rng(seed)
    x, other = random.normal(size=(2, count))
    y = correlation * x + (1 - correlation**2) ** 0.5 * other
    return pa.table({"x": x, "y": y, "hour": np.arange(count) * 3600})


def test_correlated_drift_changes_predictions(model: ServedModel) -> None:
    reference, same, together = rows(8_000, 1), rows(2_000, 2), rows(2_000, 3, correlation=0.9)
    unchanged = compare_predictions(model, reference, same, SkewTest())
    assert not unchanged.drifted and unchanged.score <= unchanged.threshold
    moved = compare_predictions(model, reference, together, SkewTest())
    assert moved.drifted and moved.score > 0.3 and moved.threshold == 0.05
    assert detect_skew(reference.drop(["hour"]), together.drop(["hour"])).verdict == "stable"


def test_predictions_are_compared_with_windows_of_the_reference(model: ServedModel) -> None:
    reference = pa.concat_tables([rows(500, seed, correlation=0.9 * (seed % 2)) for seed in range(8)])
    reference = reference.set_column(2, "hour", pa.array(np.arange(4_000) * 3600))
    windows = OwnWindows("hour", 0.0, 500 * 3600.0)
    usual = compare_predictions(model, reference, rows(500, 9, correlation=0.9), SkewTest(), windows=windows)
    other = compare_predictions(model, reference, rows(500, 9, correlation=-0.9), SkewTest(), windows=windows)
    assert compare_predictions(model, reference, rows(500, 9, correlation=0.9), SkewTest()).drifted
    assert (usual.drifted, other.drifted) == (False, True)


def test_likeliest_of_several_classes_is_compared(tmp_path: Path) -> None:
    random = np.random.default_rng(4)
    model = ServedModel(write_echo_model(tmp_path / "kinds", "probabilities", ["p", "q"]))
    before, after = (pa.table({"p": random.random(3_000), "q": random.random(3_000) * scale}) for scale in (1.0, 1.5))
    moved = compare_predictions(model, before, after, SkewTest(), classes=("red", "blue"))
    assert moved.drifted and re.match("'(red|blue)' in ", moved.summary or "")
    with pytest.raises(BadInput, match="current: there is no column 'q'"):
        compare_predictions(model, before, after.drop(["q"]), SkewTest())
