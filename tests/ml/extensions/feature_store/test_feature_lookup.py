"""Look-ups of features whose values are missing, or whose keys cannot be."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import socket
import threading
from collections.abc import Iterator
from concurrent import futures
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tensorflow as tf
from echo_models import write_function

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.errors import BadInput
from airflow_hops.core.serving_api import tensors
from airflow_hops.core.serving_api.protocol import Method, PredictRequest, PredictResponse, load_messages
from airflow_hops.extensions.feature_store.core.stored_features import OnlineFeatures, StoredFeature, StoredFeatures
from airflow_hops.extensions.feature_store.serving.feature_lookup import LookupServable
from airflow_hops.extensions.feature_store.serving.feature_server import FeatureServer, LookupLimit
from airflow_hops.extensions.feature_store.serving.lookup import FeatureFlags, FeatureLookup
from airflow_hops.ml.deploy.lookups import lookup_of
from airflow_hops.serving.errors import ServingError
from airflow_hops.serving.flags import Flags
from airflow_hops.serving.models.formats import ModelOptions, open_model
from airflow_hops.serving.models.lookups import Lookup, LookupFile, with_lookup
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


MESSAGES = load_messages("airflow_hops.extensions.feature_store.serving")
Value = MESSAGES["Value"]


class Feast:
    """Answers as Feast's gRPC feature server does, with values by view, feature and key."""

    def __init__(self) -> None:
        self.values: dict[tuple[str, str, Any], Any] = {}
        self.event_s = 10**10
        handler = grpc.unary_unary_rpc_method_handler(
            self.answer,
            MESSAGES["GetOnlineFeaturesRequest"].FromString,
            MESSAGES["GetOnlineFeaturesResponse"].SerializeToString,
        )
        self.server = grpc.server(futures.ThreadPoolExecutor(2))
        handlers = grpc.method_handlers_generic_handler("GrpcFeatureServer", {"GetOnlineFeatures": handler})
        self.server.add_generic_rpc_handlers((handlers,))
        self.address = f"127.0.0.1:{self.server.add_insecure_port('127.0.0.1:0')}"
        self.server.start()

    def answer(self, request: Any, context: object) -> Any:
        response = MESSAGES["GetOnlineFeaturesResponse"]()
        columns = [request.entities[name].val for name in sorted(request.entities)]
        keys = [tuple(getattr(value, value.WhichOneof("val")) for value in row) for row in zip(*columns, strict=True)]
        for reference in request.features.val:
            view, _, feature = reference.partition(":")
            response.metadata.feature_names.val.append(f"{view}__{feature}")
            vector = response.results.add()
            for key in keys:
                stored = self.values.get((view, feature, key[0] if len(key) == 1 else key))
                vector.values.add().CopyFrom(stored or Value())
                if self.event_s:
                    vector.event_timestamps.add(seconds=self.event_s if stored is not None else 0)
        return response


@pytest.fixture
def feast() -> Iterator[Feast]:
    server = Feast()
    yield server
    server.server.stop(0)


def looking_up(
    folder: Path,
    feast: Feast,
    width: int | None = 3,
    version: Servable | None = None,
    defaults: dict[str, Any] | None = None,
    **origins: StoredFeature,
) -> LookupServable:
    """Returns the version with look-ups at a feature server."""
    version = version or opened(folder, width)
    features = OnlineFeatures("shop", origins or {"vector": ORIGIN}, defaults or {})
    return LookupServable(version, features, FeatureServer(feast.address, 5.0))


INT32, STRING = Value(int32_val=7), Value(string_val="a")
VECTOR = Value(float_list_val={"val": [1, 2]})


class TestContract(ServerPartContract):
    name = "feature_store"

    @pytest.fixture
    def arguments(self, feast: Feast) -> list[str]:
        return [f"--feature_server={feast.address}"]

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
        ("count", Value(double_val=1.9), "is 1.9; the model takes int32"),
        ("count", Value(int64_val=2**32 + 1), "is 4294967297; the model takes int32"),
        ("count", STRING, "is 'a'; the model takes int32"),
        ("count", VECTOR, "is [1.0, 2.0]; the model takes one value"),
        (
            "count",
            Value.FromString(b"\x72\x03\x0a\x01\x05"),
            "cannot be read: a value of a type that no model takes",
        ),
        ("rate", STRING, "is 'a'; the model takes float"),
        ("rate", Value(double_val=1e300), "is 1e+300; the model takes float"),
        ("rate", Value(int64_val=2**53 + 1), "is 9007199254740993; the model takes float"),
        ("name", INT32, "is 7; the model takes string"),
    ],
)
def test_stored_value_of_another_type_is_refused(
    tmp_path: Path, feast: Feast, feature: str, value: Any, message: str
) -> None:
    origins = {name: replace(ORIGIN, feature=name) for name in ("count", "rate", "name")}
    servable = looking_up(tmp_path, feast, version=scalars(tmp_path), **origins)
    for name, stored in {"count": INT32, "rate": INT32, "name": STRING, feature: value}.items():
        feast.values["view", name, 7] = stored
    with pytest.raises(ServingError, match=re.escape(f"online store: view:{feature} of the key {{'id': 7}} {message}")):
        servable.answer(request(id=[7]))


def test_compatible_stored_values_are_accepted(tmp_path: Path, feast: Feast) -> None:
    origins = {name: replace(ORIGIN, feature=name) for name in ("count", "rate", "name")}
    servable = looking_up(tmp_path, feast, version=scalars(tmp_path), defaults={"count": 3}, **origins)
    feast.values |= {
        ("view", "count", 7): Value(unix_timestamp_val=-(2**63)),  # Feast's null of the type
        ("view", "rate", 7): INT32,
        ("view", "name", 7): Value(null_val=0),
    }
    outputs = PredictResponse.FromString(servable.answer(request(id=[7, 8])).message).outputs
    count, rate, name = (tensors.from_proto(outputs[key]).tolist() for key in ("count", "rate", "name"))
    assert (count, rate[0], np.isnan(rate[1]), name) == ([3, 3], 7, True, [b"", b""])
    assert not servable.answer(request(id=[])).rows


def test_views_may_have_a_key_as_integers_of_other_widths(tmp_path: Path, feast: Feast) -> None:
    origins = {name: replace(ORIGIN, feature=name) for name in ("count", "name")}
    wider = StoredFeature("wide", "rate", "Float32", {"id": "id"}, {"id": "INT64"})
    servable = looking_up(tmp_path, feast, version=scalars(tmp_path), defaults={"count": 3}, rate=wider, **origins)
    feast.values |= {("view", "count", 7): INT32, ("wide", "rate", 7): Value(double_val=1.9)}
    outputs = PredictResponse.FromString(servable.answer(request(id=[7])).message).outputs
    seen = {key: tensors.from_proto(outputs[key]).tolist() for key in ("count", "rate")}
    assert seen == {"count": [7], "rate": [pytest.approx(1.9)]}


def test_a_view_is_looked_up_by_several_columns(tmp_path: Path, feast: Feast) -> None:
    by_two = {
        name: StoredFeature("view", "count", "Int32", {"id": key}, {"id": "STRING"})
        for name, key in (("count", "from"), ("rate", "to"), ("name", "to"))
    }
    by_two["name"] = replace(by_two["name"], feature="name")
    servable = looking_up(tmp_path, feast, version=scalars(tmp_path), **by_two)
    feast.values |= {("view", "count", "é"): INT32, ("view", "count", "b"): Value(int32_val=8)}
    message = PredictRequest()
    for name, values in (("from", ["é", "b"]), ("to", ["b", "é"])):
        tensors.fill_proto(message.inputs[name], np.array(values))
    outputs = PredictResponse.FromString(servable.answer(Call(Method.PREDICT, message.SerializeToString())).message)
    seen = [tensors.from_proto(outputs.outputs[name]).tolist() for name in by_two]
    assert seen == [[7, 8], [8, 7], [b"", b""]]


def test_vectors_of_another_width_are_refused(tmp_path: Path, feast: Feast) -> None:
    of_three, of_any = looking_up(tmp_path / "3", feast), looking_up(tmp_path / "any", feast, None)
    feast.values |= {("view", "vector", 7): VECTOR, ("view", "vector", 8): Value(float_list_val={"val": [1]})}
    with pytest.raises(ServingError, match=r"is \[1.0, 2.0\]; the model takes a vector of 3 values"):
        of_three.answer(request(id=[7]))
    with pytest.raises(ServingError, match=r"has vectors of \[1, 2\] values for the keys of the request"):
        of_any.answer(request(id=[7, 8]))


def test_defaults_of_another_type_are_refused(tmp_path: Path, feast: Feast) -> None:
    for name, default in (("count", 1.9), ("rate", [1.0]), ("name", 1)):
        version = scalars(tmp_path / name)
        with pytest.raises(ServingError, match=f"the default of '{name}' is "):
            looking_up(tmp_path / name, feast, version=version, defaults={name: default}, **{name: ORIGIN})


def test_feature_server_that_is_down_or_fails_is_reported(tmp_path: Path, feast: Feast) -> None:
    servable = looking_up(tmp_path, feast)
    feast.values["view", "vector", 7] = object()
    with pytest.raises(ServingError, match=rf"feature server: {feast.address}: UNKNOWN: Exception calling") as failure:
        servable.answer(request(id=[7]))
    assert failure.value.http_status == 503
    feast.server.stop(0).wait()
    with pytest.raises(ServingError, match=rf"feature server: {feast.address}: UNAVAILABLE: "):
        servable.answer(request(id=[7]))
    features = OnlineFeatures("shop", {"vector": ORIGIN}, {"vector": [1.0, 2, 3]}, default_if_down=True)
    with_defaults = LookupServable(opened(tmp_path), features, FeatureServer(feast.address, 5.0))
    outputs = PredictResponse.FromString(with_defaults.answer(request(id=[7])).message).outputs
    assert tensors.from_proto(outputs["seen"]).tolist() == [[1, 2, 3]]


class Silent:
    """A server that sends a byte of an answer without end every 50 ms, or none; ``until`` ends it."""

    def __init__(self, byte: bytes, until: threading.Event) -> None:
        self._byte, self._until = byte, until
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"
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
    server = FeatureServer(Silent(b"+", ends).address, 0.2)
    servable = LookupServable(opened(tmp_path), OnlineFeatures("shop", {"vector": ORIGIN}), server)
    threading.Timer(20, ends.set).start()
    with pytest.raises(ServingError, match="feature server: ") as failure:
        servable.answer(request(id=[7]))
    assert failure.value.http_status == 503
    assert not ends.is_set()


def test_slow_lookups_do_not_block_other_models(tmp_path: Path, ends: threading.Event) -> None:
    server = Silent(b"", ends)
    features = OnlineFeatures("shop", {"vector": ORIGIN})
    servable = LookupServable(opened(tmp_path), features, FeatureServer(server.address, 60), LookupLimit(1))
    with futures.ThreadPoolExecutor() as threads:
        first = threads.submit(servable.answer, request(id=[7]))
        assert server.connected.wait(60)
        with pytest.raises(ServingError, match="1 look-ups are already waiting for its answer"):
            servable.answer(request(id=[7]))
        assert not first.done()
        ends.set()
        with pytest.raises(ServingError, match="feature server: "):
            first.result()


def test_values_without_times_are_refused(tmp_path: Path, feast: Feast) -> None:
    feast.event_s = 0  # as from an online store of the type remote
    with pytest.raises(ServingError, match="answers with 0 values and times of view:vector; expected 2"):
        looking_up(tmp_path, feast).answer(request(id=[1, 2]))


def test_missing_vectors_have_the_width_of_the_input(tmp_path: Path, feast: Feast) -> None:
    reply = looking_up(tmp_path, feast).answer(request(id=[-1, 3]))
    seen = tensors.from_proto(PredictResponse.FromString(reply.message).outputs["seen"])
    assert seen.shape == (2, 3) and np.isnan(seen).all()


def test_requests_with_invalid_keys_are_refused(tmp_path: Path, feast: Feast) -> None:
    by_two = looking_up(tmp_path / "two", feast, vector=replace(ORIGIN, keys={"id": "id", "at": "at"}, key_types=TWO))
    inputs = {"id": tf.TensorSpec([None], tf.float64), "vector": tf.TensorSpec([None, 3])}
    of_floats = open_echo(tmp_path / "floats", "a key of floats", **inputs)
    for servable, call, message in (
        (looking_up(tmp_path / "any", feast, None), request(id=[-1]), "vectors of any width cannot be missing"),
        (looking_up(tmp_path / "3", feast), request(id=[2**40]), "a key of the request cannot be looked up: "),
        (
            looking_up(tmp_path / "4", feast),
            Call(Method.CLASSIFY, b""),
            "Classify: model m looks its features up by keys",
        ),
        (looking_up(tmp_path / "5", feast), request(id=[1.5]), "input 'id' is double; expected int64"),
        (
            looking_up(tmp_path / "6", feast),
            request(id=[[1, 2]]),
            "input 'id' has the shape (1, 2); expected one key for each",
        ),
        (by_two, request(id=[1, 2], at=[1]), "keys differ in length: {'id': 2, 'at': 1}"),
        (looking_up(tmp_path / "6", feast, version=of_floats), request(id=[np.inf]), "has keys that are not integers"),
    ):
        with pytest.raises(ServingError, match=re.escape(message)):
            servable.answer(call)


def test_unusable_lookup_files_are_refused(tmp_path: Path, feast: Feast) -> None:
    with pytest.raises(ServingError, match="the model does not take 'other', a feature of 'view'"):
        looking_up(tmp_path / "1", feast, other=ORIGIN)
    with pytest.raises(ServingError, match="join key 'id' is a JSON; expected one of STRING, INT32, INT64"):
        looking_up(tmp_path / "2", feast, vector=replace(ORIGIN, key_types={"id": "JSON"}))
    version, file = opened(tmp_path / "3"), tmp_path / "3" / "lookup.json"
    features = OnlineFeatures("shop", {"vector": ORIGIN}).to_dict()

    def look_up(address: str) -> None:
        options = ModelOptions.of(Flags(of_parts=(FeatureFlags(address),)))
        with_lookup(version, file.parent, options.lookups)

    file.write_text(json.dumps(LookupFile("feature_store", features).to_dict()))
    with pytest.raises(ServingError, match="start the server with --feature_server"):
        look_up("")
    for text, message in (
        ("{", "Expecting property name"),
        (json.dumps(LookupFile("another", features).to_dict()), "registers the look-up 'another'; there is feature_"),
    ):
        file.write_text(text)
        with pytest.raises(ServingError, match=rf"lookup\.json: .*{message}"):
            look_up(feast.address)


def test_versions_of_two_projects_are_refused(tmp_path: Path, feast: Feast) -> None:
    open_version = FeatureLookup().opener(Flags(of_parts=(FeatureFlags(feast.address),)))
    with pytest.raises(ServingError, match="does not take 'wind'"):
        open_version(opened(tmp_path / "broken"), OnlineFeatures("broken", {"wind": ORIGIN}).to_dict())
    for project in ("shop", "shop"):
        open_version(opened(tmp_path / project), OnlineFeatures(project, {"vector": ORIGIN}).to_dict()).close()
    with pytest.raises(ServingError, match="of Feast's project 'bank', and those of another version of 'shop'"):
        open_version(opened(tmp_path / "bank"), OnlineFeatures("bank", {"vector": ORIGIN}).to_dict())


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
