"""The comparison of a model with that of its reproduction."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from airflow_hops.core.contract.artifacts import Artifact, Producer
from airflow_hops.core.contract.properties import SAVED_MODEL
from airflow_hops.core.store import ArtifactStore
from airflow_hops.extensions.replay.ml.reproduce.compare import compare_weights, largest_difference, run


class Lookup(tf.Module):  # type: ignore[misc]
    def __init__(self, weight: float, vocabulary: Path) -> None:
        super().__init__()
        self.weight, self.vocabulary = tf.Variable(weight), tf.saved_model.Asset(str(vocabulary))


def test_weights_are_compared_by_the_models_files(tmp_path: Path) -> None:
    (tmp_path / "vocabulary.txt").write_text("UA\nDL\n")
    for name, weight in (("one", 1.0), ("same", 1.0), ("heavier", 1.5)):
        tf.saved_model.save(Lookup(weight, tmp_path / "vocabulary.txt"), str(tmp_path / name / SAVED_MODEL))
    one, same, heavier = (tmp_path / name / SAVED_MODEL for name in ("one", "same", "heavier"))
    assert compare_weights(one, same) == {"identical": True, "tensors": 2, "difference": 0.0}
    assert compare_weights(one, heavier) == {"identical": False, "tensors": 2, "difference": 0.5}
    (same / "assets" / "vocabulary.txt").write_text("DL\nUA\n")
    assert not compare_weights(one, same)["identical"]


@pytest.mark.parametrize(
    ("before", "after", "largest"),
    [
        ([1.0, math.nan, math.inf], [1.5, math.nan, math.inf], 0.5),
        ([1.0, math.nan], [1.0, 0.0], math.inf),
        ([math.inf], [-math.inf], math.inf),
        ([], [], 0.0),
    ],
)
def test_nan_predictions_equal_only_nan(before: Any, after: Any, largest: float) -> None:
    assert largest_difference(np.asarray(before), np.asarray(after)) == largest


def test_models_are_compared_without_predictions_if_the_raw_examples_are_gone(
    store: ArtifactStore, make_context: Any
) -> None:
    def write(task: str, kind: str, text: str, **inputs: tuple[Artifact, ...]) -> Artifact:
        producer = Producer("d", "r", task)
        with store.create(store.address(producer, kind), kind, producer, inputs=inputs) as writer:
            (writer.path / "onnx").mkdir()
            (writer.path / "onnx" / "model.onnx").write_text(text)
            return writer.commit(properties={"format": "onnx"})

    raw = write("raw", "examples", "x")
    examples = write("transform", "transformed_examples", "x", examples=(raw,))
    models = {"recorded": write("one", "model", "1"), "reproduced": write("other", "model", "2")}
    shutil.rmtree(Path(raw.uri.removeprefix("file://")))
    context = make_context(**models, examples=examples)
    result = run(context, weights_decide=True)
    assert not result["weights"]["identical"]
    assert "it was deleted" in result["predictions"]["why"]
