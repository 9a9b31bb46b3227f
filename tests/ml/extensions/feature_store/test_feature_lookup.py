"""Look-ups of features whose values are missing, or whose keys cannot be."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import socket
import sqlite3
import struct
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from echo_models import write_function

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.errors import BadInput
from airflow_hops.core.serving_api import tensors
from airflow_hops.core.serving_api.protocol import Method, PredictRequest, PredictResponse
from airflow_hops.extensions.feature_store.core.stored_features import OnlineFeatures, StoredFeature, StoredFeatures
from airflow_hops.extensions.feature_store.serving.feature_lookup import LookupServable
from airflow_hops.extensions.feature_store.serving.lookup import FeatureFlags
from airflow_hops.extensions.feature_store.serving.online_store import LookupLimit, entity_key, open_online_store
from airflow_hops.ml.deploy.lookups import lookup_of
from airflow_hops.serving.errors import ServingError
from airflow_hops.serving.flags import Flags
from airflow_hops.serving.models.formats import open_model
from airflow_hops.serving.models.lookups import Lookup, LookupFile, with_lookup
from airflow_hops.serving.models.model_options import ModelOptions
from airflow_hops.serving.models.servable import Call, Servable
from airflow_hops.serving.parts import ServerPart
from airflow_hops.testing.server_parts import ServerPartContract

STORED = {
    "stored_features": StoredFeatures(
        "shop", "f", {"delay": StoredFeature("view", "delay", "Float32"), "sky": StoredFeature("view", "sky", "String")}
    ).to_dict()
}


TWO = {"id": "INT64", "at": "INT64"}
ORIGIN = StoredFeature("view", "vector", "Array(Float32)", {"id": "id"}, {"id": "INT32"})


def open_echo(folder: Path, kind: str, **inputs: tf.TensorSpec) -> Servable:
    """Opens a version that answers with its inputs; models of a kind are equal, and saved once."""
    saved = folder / "1"
    if kind not in SAVED or not SAVED[kind].exists():
        SAVED[kind] = saved

        def serve(*values: tf.Tensor) -> dict[str, tf.Tensor]:
            outputs = ("seen",) if len(inputs) == 1 else inputs
            return {name: tf.identity(value) for name, value in zip(outputs, values, strict=True)}

        write_function(saved, serve, **{name: (spec.dtype, spec.shape) for name, spec in inputs.items()})
    elif not saved.exists():
        shutil.copytree(SAVED[kind], saved)
    return open_model("m", 1, saved, ModelOptions())


SAVED: dict[str, Path] = {}


def opened(folder: Path, width: int | None = 3) -> Servable:
    """Returns a version that answers with the vector it gets."""
    return open_echo(folder, f"vector of {width}", vector=tf.TensorSpec([None, width]))


def scalars(folder: Path) -> Servable:
    types = {"count": tf.int32, "rate": tf.float32, "name": tf.string}
    return open_echo(folder, "scalars", **{name: tf.TensorSpec([None], kind) for name, kind in types.items()})


def looking_up(
    folder: Path,
    width: int | None = 3,
    version: Servable | None = None,
    defaults: dict[str, Any] | None = None,
    **origins: StoredFeature,
) -> LookupServable:
    """Returns the version with look-ups in a store without values."""
    version = version or opened(folder, width)
    with sqlite3.connect(folder / "online.db") as connection:  # as Feast makes it
        connection.execute("create table shop_view (entity_key blob, feature_name text, value blob, event_ts text)")
    store = open_online_store(f"sqlite://{folder}/online.db", "shop", 1.0)
    return LookupServable(version, OnlineFeatures("shop", origins or {"vector": ORIGIN}, defaults or {}), store)


def put(folder: Path, feature: str, value: bytes, time: Any = 1e10, *, id: int = 7) -> None:
    with sqlite3.connect(folder / "online.db") as connection:
        row = (entity_key({"id": ("INT32", id)}), feature, value, time)
        connection.execute("insert into shop_view values (?, ?, ?, ?)", row)


INT32, INT64 = b"\x18\x07", b"\x20\x81\x80\x80\x80\x10"
DOUBLE, STRING = b"\x29" + struct.pack("<d", 1.9), b"\x12\x01a"
"""Feast's values of these types: 7, 2 ** 32 + 1, 1.9 and a."""
VECTOR, CODES = b"\x82\x01\x0a\x0a\x08" + struct.pack("<ff", 1, 2), b"\x72\x03\x0a\x01\x05"


class TestContract(ServerPartContract):
    name = "feature_store"

    @pytest.fixture
    def arguments(self, tmp_path: Path) -> list[str]:
        with sqlite3.connect(tmp_path / "online.db") as connection:  # as Feast makes it
            connection.execute("create table shop_view (entity_key blob, feature_name text, value blob, event_ts text)")
        return [f"--online_store=sqlite://{tmp_path}/online.db"]

    def test_a_description_opens_a_version_that_takes_keys(
        self, part: ServerPart, flags: Flags, tmp_path: Path
    ) -> None:
        assert isinstance(part, Lookup)
        stored = StoredFeatures("shop", "f", {"vector": ORIGIN}).to_dict()
        data = Artifact("file:///d", "examples", "f", properties={"stored_features": stored})
        model = Artifact("file:///model", "model", "f", properties={"inputs": ["vector"]})
        assert part.describe(replace(data, kind="another", properties={}), model, {}) is None
        with pytest.raises(BadInput, match="unknown_to_the_lookup"):
            part.describe(data, model, {"unknown_to_the_lookup": 1})
        with pytest.raises((KeyError, ValueError, TypeError)):
            part.request_keys({"unknown": 1})
        with pytest.raises(ServingError):
            part.opener(flags)(opened(tmp_path), {"unknown": 1})
        description = json.loads(json.dumps(part.describe(data, model, {})))
        of_requests, servable = part.request_keys(description), part.opener(flags)(opened(tmp_path), description)
        types = servable.signature("").input_types
        assert (of_requests.filled, of_requests.keys) == ({"vector"}, {"id": types["id"].name})
        assert types.keys() == {"id"}
        reply = servable.answer(request(id=[7]))
        assert PredictResponse.FromString(reply.message).outputs
        assert reply.captured is None or "vector" in PredictRequest.FromString(reply.captured).inputs
        with pytest.raises(ServingError):
            servable.answer(request(id=[7], vector=[0.0]))
        servable.close()


def request(**keys: list[Any]) -> Call:
    message = PredictRequest()
    message.model_spec.name = "m"
    for name, values in keys.items():
        tensors.fill_proto(message.inputs[name], np.array(values) if values else np.array(values, np.int64))
    return Call(Method.PREDICT, message.SerializeToString())


@pytest.mark.parametrize(
    ("feature", "value", "message"),
    [
        ("count", DOUBLE, "is 1.9; the model takes int32"),
        ("count", INT64, "is 4294967297; the model takes int32"),
        ("count", STRING, "is 'a'; the model takes int32"),
        ("count", VECTOR, "is [1.0, 2.0]; the model takes one value"),
        ("count", CODES, "cannot be read: a value of a type that no model takes"),
        ("count", b"\x12\x09a", "cannot be read: "),
        ("rate", STRING, "is 'a'; the model takes float"),
        ("rate", b"\x29" + struct.pack("<d", 1e300), "is 1e+300; the model takes float"),
        ("rate", b"\x20" + b"\x81" + b"\x80" * 6 + b"\x10", "is 9007199254740993; the model takes float"),
        ("name", INT32, "is 7; the model takes string"),
    ],
)
def test_stored_value_of_another_type_is_refused(tmp_path: Path, feature: str, value: bytes, message: str) -> None:
    origins = {name: replace(ORIGIN, feature=name) for name in ("count", "rate", "name")}
    servable = looking_up(tmp_path, version=scalars(tmp_path), **origins)
    stored = {"count": INT32, "rate": INT32, "name": STRING}
    for name, content in {**stored, feature: value}.items():
        put(tmp_path, name, content)
    with pytest.raises(ServingError, match=re.escape(f"online store: view:{feature} of the key {{'id': 7}} {message}")):
        servable.answer(request(id=[7]))


def test_compatible_stored_values_are_accepted(tmp_path: Path) -> None:
    origins = {name: replace(ORIGIN, feature=name) for name in ("count", "rate", "name")}
    servable = looking_up(tmp_path, version=scalars(tmp_path), defaults={"count": 3}, **origins)
    put(tmp_path, "count", b"\x40" + b"\x80" * 9 + b"\x01")  # Feast's null of the type UnixTimestamp
    put(tmp_path, "rate", INT32)
    put(tmp_path, "name", b"\x98\x01\x00")  # a null that is written
    outputs = PredictResponse.FromString(servable.answer(request(id=[7, 8])).message).outputs
    count, rate, name = (tensors.from_proto(outputs[key]).tolist() for key in ("count", "rate", "name"))
    assert (count, rate[0], np.isnan(rate[1]), name) == ([3, 3], 7, True, [b"", b""])
    assert not servable.answer(request(id=[])).rows


def test_views_may_have_a_key_as_integers_of_other_widths(tmp_path: Path) -> None:
    origins = {name: replace(ORIGIN, feature=name) for name in ("count", "name")}
    wider = StoredFeature("wide", "rate", "Float32", {"id": "id"}, {"id": "INT64"})
    servable = looking_up(tmp_path, version=scalars(tmp_path), defaults={"count": 3}, rate=wider, **origins)
    put(tmp_path, "count", INT32)
    with sqlite3.connect(tmp_path / "online.db") as connection:
        connection.execute("create table shop_wide as select * from shop_view where false")
        row = (entity_key({"id": ("INT64", 7)}), "rate", DOUBLE, 1e10)
        connection.execute("insert into shop_wide values (?, ?, ?, ?)", row)
    outputs = PredictResponse.FromString(servable.answer(request(id=[7])).message).outputs
    seen = {key: tensors.from_proto(outputs[key]).tolist() for key in ("count", "rate")}
    assert seen == {"count": [7], "rate": [pytest.approx(1.9)]}


def test_vectors_of_another_width_are_refused(tmp_path: Path) -> None:
    origin = replace(ORIGIN, feature="vector")
    of_three, of_any = looking_up(tmp_path / "3", vector=origin), looking_up(tmp_path / "any", None, vector=origin)
    for folder in ("3", "any"):
        put(tmp_path / folder, "vector", VECTOR)
    with pytest.raises(ServingError, match=r"is \[1.0, 2.0\]; the model takes a vector of 3 values"):
        of_three.answer(request(id=[7]))
    put(tmp_path / "any", "vector", b"\x82\x01\x06\x0a\x04" + struct.pack("<f", 1), id=8)
    with pytest.raises(ServingError, match=r"has vectors of \[1, 2\] values for the keys of the request"):
        of_any.answer(request(id=[7, 8]))
    put(tmp_path / "3", "vector", VECTOR, "yesterday")
    with pytest.raises(ServingError, match="cannot be read: its time: could not convert string"):
        of_three.answer(request(id=[7]))


def test_defaults_of_another_type_are_refused(tmp_path: Path) -> None:
    for name, default in (("count", 1.9), ("rate", [1.0]), ("name", 1)):
        with pytest.raises(ServingError, match=f"the default of '{name}' is "):
            looking_up(tmp_path / name, version=scalars(tmp_path / name), defaults={name: default}, **{name: ORIGIN})


class Silent:
    """A server that sends a byte of an answer without end every 50 ms, or none; ``until`` ends it."""

    def __init__(self, byte: bytes, until: threading.Event) -> None:
        self._byte, self._until = byte, until
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self._socket.getsockname()[1]}/0"
        self.connected = threading.Event()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        connection, _ = self._socket.accept()
        self.connected.set()
        with connection, contextlib.suppress(OSError):
            while not self._until.wait(0.05):
                connection.sendall(self._byte)


@pytest.fixture
def ends() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def test_lookup_ends_at_its_timeout(tmp_path: Path, ends: threading.Event) -> None:
    store = open_online_store(Silent(b"+", ends).url, "shop", 0.2)
    servable = LookupServable(opened(tmp_path), OnlineFeatures("shop", {"vector": ORIGIN}), store)
    threading.Timer(20, ends.set).start()
    with pytest.raises(ServingError, match="online store: ") as failure:
        servable.answer(request(id=[7]))
    assert failure.value.http_status == 503
    assert not ends.is_set()


def test_slow_lookups_do_not_block_other_models(tmp_path: Path, ends: threading.Event) -> None:
    server = Silent(b"", ends)
    store = open_online_store(server.url, "shop", 60)
    features = OnlineFeatures("shop", {"vector": ORIGIN})
    servable = LookupServable(opened(tmp_path), features, store, LookupLimit(1))
    with ThreadPoolExecutor() as threads:
        first = threads.submit(servable.answer, request(id=[7]))
        assert server.connected.wait(60)
        with pytest.raises(ServingError, match="1 look-ups are already waiting for its answer"):
            servable.answer(request(id=[7]))
        assert not first.done()
        ends.set()
        with pytest.raises(ServingError, match="online store: "):
            first.result()


def test_missing_vectors_have_the_width_of_the_input(tmp_path: Path) -> None:
    reply = looking_up(tmp_path).answer(request(id=[-1, 3]))
    seen = tensors.from_proto(PredictResponse.FromString(reply.message).outputs["seen"])
    assert seen.shape == (2, 3) and np.isnan(seen).all()


def test_requests_with_invalid_keys_are_refused(tmp_path: Path) -> None:
    by_two = looking_up(tmp_path / "two", vector=replace(ORIGIN, keys={"id": "id", "at": "at"}, key_types=TWO))
    for servable, call, message in (
        (looking_up(tmp_path / "any", None), request(id=[-1]), "vectors of any width cannot be missing"),
        (looking_up(tmp_path / "3"), request(id=[2**40]), "beyond its type INT32"),
        (looking_up(tmp_path / "4"), Call(Method.CLASSIFY, b""), "Classify: model m looks its features up by keys"),
        (looking_up(tmp_path / "5"), request(id=[1.5]), "input 'id' is double; expected int64"),
        (
            looking_up(tmp_path / "6"),
            request(id=[[1, 2]]),
            "input 'id' has the shape (1, 2); expected one key for each",
        ),
        (by_two, request(id=[1, 2], at=[1]), "keys differ in length: {'id': 2, 'at': 1}"),
    ):
        with pytest.raises(ServingError, match=re.escape(message)):
            servable.answer(call)


def test_unusable_lookup_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ServingError, match="the model does not take 'other', a feature of 'view'"):
        looking_up(tmp_path / "1", other=ORIGIN)
    with pytest.raises(ServingError, match="join key 'id' is a JSON; expected one of STRING, INT32, INT64"):
        looking_up(tmp_path / "2", vector=replace(ORIGIN, key_types={"id": "JSON"}))
    version, file = opened(tmp_path / "3"), tmp_path / "3" / "lookup.json"
    features = OnlineFeatures("shop", {"vector": ORIGIN}).to_dict()

    def look_up(store: str) -> None:
        options = ModelOptions.of(Flags(of_parts=(FeatureFlags(store),)))
        with_lookup(version, file.parent, options.lookups)

    file.write_text(json.dumps(LookupFile("feature_store", features).to_dict()))
    for store, message in (("", "start the server with --online_store"), ("ftp://x", "expected redis://")):
        with pytest.raises(ServingError, match=message):
            look_up(store)
    for text, message in (
        ("{", "Expecting property name"),
        (json.dumps(LookupFile("another", features).to_dict()), "registers the look-up 'another'; there is feature_"),
    ):
        file.write_text(text)
        with pytest.raises(ServingError, match=rf"lookup\.json: .*{message}"):
            look_up("redis://localhost")


@pytest.mark.parametrize(
    ("properties", "inputs", "options", "message"),
    [
        (None, (), {"timeout_s": 1}, "lookup_options has timeout_s, but there is no lookup"),
        ({}, (), {}, "that no look-up takes; registered look-ups: feature_store"),
        (STORED, ("delay",), {"age": 1}, "lookup_options has 'age'; expected default_if_down, defaults, max_age_s"),
        (STORED, ("wind",), {}, "the model takes wind; lookup has delay, sky"),
        (STORED, ("delay",), {"defaults": {"sky": "rain"}}, "defaults has 'sky'; the model takes delay"),
        (STORED, ("delay",), {"defaults": {"delay": "0"}}, "the default of 'delay' is '0'; expected a Float32"),
        (STORED, ("sky",), {"defaults": {"sky": None}}, "the default of 'sky' is None; expected a String"),
        (STORED, ("delay",), {"max_age_s": 0}, "max_age_s is 0; expected seconds, more than 0"),
        (STORED, ("delay",), {"timeout_s": -0.5}, "timeout_s is -0.5; expected seconds, more than 0"),
    ],
)
def test_lookup_features_are_checked(
    run_stage: Any, properties: Any, inputs: tuple[str, ...], options: dict[str, Any], message: str
) -> None:
    model = Artifact("file:///model", "model", "f", properties={"inputs": list(inputs)})
    dataset = {} if properties is None else {"lookup": Artifact("file:///d", "examples", "f", properties=properties)}
    with pytest.raises(BadInput, match=message):
        run_stage(lambda context: lookup_of(context, model, options), kind="deployment", inputs=dataset)
