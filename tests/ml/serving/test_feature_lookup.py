"""Look-ups of features whose values are missing, or whose keys cannot be."""

from __future__ import annotations

import json
import re
import sqlite3
from dataclasses import replace
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
from airflow_hops.serving.models.feature_lookup import LookupServable, with_lookups
from airflow_hops.serving.models.formats import open_model
from airflow_hops.serving.models.model_options import ModelOptions
from airflow_hops.serving.models.online_store import open_online_store
from airflow_hops.serving.models.servable import Call, Servable

STORED = {
    "stored_features": StoredFeatures(
        "shop", "f", {"delay": StoredFeature("view", "delay", "Float32"), "sky": StoredFeature("view", "sky", "String")}
    ).to_dict()
}


TWO = {"id": "INT64", "at": "INT64"}
ORIGIN = StoredFeature("view", "vector", "Array(Float32)", {"id": "id"}, {"id": "INT32"})


def opened(folder: Path, width: int | None = 3) -> Servable:
    """Returns a version that answers with the vector it gets."""

    @tf.function(input_signature=[tf.TensorSpec([None, width], tf.float32, "vector")])
    def serve(vector: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"seen": tf.identity(vector)}

    module = tf.Module()
    module.serve = serve
    tf.saved_model.save(module, str(folder / "1"), signatures={"serving_default": serve})
    return open_model("m", 1, folder / "1", ModelOptions())


def looking_up(folder: Path, width: int | None = 3, **origins: StoredFeature) -> LookupServable:
    """Returns the version with look-ups in a store without values."""
    version = opened(folder, width)
    with sqlite3.connect(folder / "online.db") as connection:  # as Feast makes it
        connection.execute("create table shop_view (entity_key blob, feature_name text, value blob, event_ts text)")
    store = open_online_store(f"sqlite://{folder}/online.db", "shop", 1.0)
    return LookupServable(version, OnlineFeatures("shop", origins or {"vector": ORIGIN}), store)


def request(**keys: list[int]) -> Call:
    message = PredictRequest()
    message.model_spec.name = "m"
    for name, values in keys.items():
        tensors.fill_proto(message.inputs[name], np.array(values, np.int64))
    return Call(Method.PREDICT, message.SerializeToString())


def test_missing_vectors_have_the_width_of_the_input(tmp_path: Path) -> None:
    reply = looking_up(tmp_path).answer(request(id=[-1, 3]))
    seen = tensors.from_proto(PredictResponse.FromString(reply.message).outputs["seen"])
    assert seen.shape == (2, 3) and np.isnan(seen).all()


def test_requests_that_cannot_be_looked_up_are_refused(tmp_path: Path) -> None:
    by_two = looking_up(tmp_path / "two", vector=replace(ORIGIN, keys={"id": "id", "at": "at"}, key_types=TWO))
    for servable, call, message in (
        (looking_up(tmp_path / "any", None), request(id=[-1]), "vectors of any width cannot be missing"),
        (looking_up(tmp_path / "3"), request(id=[2**40]), "beyond its type INT32"),
        (looking_up(tmp_path / "4"), Call(Method.CLASSIFY, b""), "Classify: model m looks its features up by keys"),
        (by_two, request(id=[1, 2], at=[1]), "keys differ in length: {'id': 2, 'at': 1}"),
    ):
        with pytest.raises(ServingError, match=re.escape(message)):
            servable.answer(call)


def test_files_that_cannot_be_looked_up_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ServingError, match="the model does not take 'other', a feature of 'view'"):
        looking_up(tmp_path / "1", other=ORIGIN)
    with pytest.raises(ServingError, match="join key 'id' is a JSON; expected one of STRING, INT32, INT64"):
        looking_up(tmp_path / "2", vector=replace(ORIGIN, key_types={"id": "JSON"}))
    version, file = opened(tmp_path / "3"), tmp_path / "3" / "online_features.json"
    file.write_text(json.dumps(OnlineFeatures("shop", {"vector": ORIGIN}).to_dict()))
    for store, message in (
        ("", "start the server with --online_store"),
        ("ftp://x", "expected redis://"),
    ):
        with pytest.raises(ServingError, match=message):
            with_lookups(version, file.parent, store)
    file.write_text("{")
    with pytest.raises(ServingError, match=r"online_features\.json: "):
        with_lookups(version, file.parent, "redis://localhost")


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
