"""Modules of PyTorch for several labels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from airflow_hops.core.errors import BadInput
from airflow_hops.extensions.frameworks.ml.torch_modules import Torch
from airflow_hops.ml.features.serving_export import served_outputs
from airflow_hops.ml.models.samples import Sample
from airflow_hops.ml.models.trained_models import answers_of
from tests.ml.training.test_more_labels import TARGET

HEADS = {"late": np.full((4, 1), 0.5), "minutes": np.zeros(4), "cause": np.full((4, 3), 1 / 3)}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"late": HEADS["late"], "cause": HEADS["cause"]}, "has no output for the label 'minutes'; it gives 'late'"),
        ({**HEADS, "minutes": np.zeros((4, 2))}, "label 'minutes': "),
        ({**HEADS, "cause": np.full((4, 2), 0.5)}, "label 'cause': "),
        (HEADS["late"], "gives one output; expected a dict with an output for each of the labels 'late', 'minutes', "),
        ({**HEADS, "minutes_prediction": np.ones(4)}, "'minutes_prediction'.* the name of .* served for a label"),
    ],
)
def test_a_model_that_does_not_predict_each_label_is_refused(
    given: Any, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # There is no PyTorch in this environment; what comes of its modules is judged all the same.
    monkeypatch.setattr(Torch, "predict", lambda self, model, sample, target: given)
    with pytest.raises(BadInput, match=words):
        served_outputs(tf.nest.map_structure(tf.constant, given), TARGET)
    with pytest.raises(BadInput, match=words):
        answers_of(object(), Sample.of(np.zeros((4, 2)), ["a", "b"]), "torch", TARGET)
