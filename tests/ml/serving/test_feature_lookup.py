"""Look-ups of features whose values are missing, or whose keys cannot be."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from airflow_hops.core.contract.artifacts import Artifact, BadInput
from airflow_hops.core.contract.features import OnlineFeatures, StoredFeature, StoredFeatures
from airflow_hops.core.serving_api import tensors
from airflow_hops.core.serving_api.protocol import Method, PredictRequest, PredictResponse
from airflow_hops.ml.stages.deploy.online_features import online_features
from airflow_hops.serving.errors import ServingError
from airflow_hops.serving.models.feature_lookup import LookupServable
from airflow_hops.serving.models.formats import open_model
from airflow_hops.serving.models.model_options import ModelOptions
from airflow_hops.serving.models.online_store import open_online_store
from airflow_hops.serving.models.servable import Call

STORED = {
    "stored_features": StoredFeatures(
        "shop", "f", {"delay": StoredFeature("view", "delay", "Float32"), "sky": StoredFeature("view", "sky", "String")}
    ).to_dict()
}


def look_up(folder: Path, width: int | None, key: int) -> np.ndarray:
    """Returns the vector that a model gets for a key without values in the store."""

    @tf.function(input_signature=[tf.TensorSpec([None, width], tf.float32, "vector")])
    def serve(vector: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"seen": tf.identity(vector)}

    module = tf.Module()
    module.serve = serve
    tf.saved_model.save(module, str(folder / "1"), signatures={"serving_default": serve})
    with sqlite3.connect(folder / "online.db") as connection:  # as Feast makes it
        connection.execute("create table shop_view (entity_key blob, feature_name text, value blob, event_ts text)")
    origin = StoredFeature("view", "vector", "Array(Float32)", {"id": "id"}, {"id": "INT32"})
    store = open_online_store(f"sqlite://{folder}/online.db", "shop", 1.0)
    servable = LookupServable(
        open_model("m", 1, folder / "1", ModelOptions()), OnlineFeatures("shop", {"vector": origin}), store
    )
    request = PredictRequest()
    request.model_spec.name = "m"
    tensors.fill_proto(request.inputs["id"], np.array([key, 3], np.int64))
    reply = servable.answer(Call(Method.PREDICT, request.SerializeToString()))
    seen: np.ndarray = tensors.from_proto(PredictResponse.FromString(reply.message).outputs["seen"])
    return seen


def test_missing_vectors_have_the_width_of_the_input(tmp_path: Path) -> None:
    seen = look_up(tmp_path, 3, -1)
    assert seen.shape == (2, 3) and np.isnan(seen).all()


def test_vectors_of_any_width_and_keys_beyond_their_type_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ServingError, match="vectors of any width cannot be missing"):
        look_up(tmp_path, None, -1)


def test_keys_beyond_their_type_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ServingError, match="beyond its type INT32"):
        look_up(tmp_path, 3, 2**40)


@pytest.mark.parametrize(
    ("properties", "inputs", "options", "message"),
    [
        (None, (), {"timeout_s": 1}, "feature_options has timeout_s, but there are no features"),
        ({}, (), {}, "features is not the output of TrainingDatasetOperator"),
        (STORED, ("delay",), {"age": 1}, "feature_options has 'age'; expected default_if_down, defaults, max_age_s"),
        (STORED, ("wind",), {}, "the model takes wind; features has delay, sky"),
        (STORED, ("delay",), {"defaults": {"sky": "rain"}}, "defaults has 'sky'; the model takes delay"),
        (STORED, ("delay",), {"defaults": {"delay": "0"}}, "the default of 'delay' is '0'; expected a Float32"),
        (STORED, ("sky",), {"defaults": {"sky": None}}, "the default of 'sky' is None; expected a String"),
        (STORED, ("delay",), {"max_age_s": 0}, "max_age_s is 0; expected seconds, more than 0"),
        (STORED, ("delay",), {"timeout_s": -0.5}, "timeout_s is -0.5; expected seconds, more than 0"),
    ],
)
def test_features_to_look_up_are_checked(
    run_stage: Any, properties: Any, inputs: tuple[str, ...], options: dict[str, Any], message: str
) -> None:
    model = Artifact("file:///model", "model", "f", properties={"inputs": list(inputs)})
    dataset = {} if properties is None else {"features": Artifact("file:///d", "examples", "f", properties=properties)}
    with pytest.raises(BadInput, match=message):
        run_stage(lambda context: online_features(context, model, options), kind="deployment", inputs=dataset)
