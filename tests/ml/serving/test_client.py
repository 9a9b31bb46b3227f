"""The gRPC client, and the messages that it declares for itself."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from server_process import ServerProcess

from airflow_hops.core.serving_api import protocol
from airflow_hops.core.serving_api.answers import ModelServerError
from airflow_hops.core.serving_api.client import ModelServerClient


def test_inputs_are_converted_to_signature_types(shared_server: ServerProcess) -> None:
    with ModelServerClient(shared_server.address) as client:
        lists = client.predict("flights", {"carrier": ["AA", "ZZ"], "distance": [[1], [2]], "hour": [3, 4]})
        arrays = client.predict(
            "flights",
            {
                "carrier": np.array(["AA", "ZZ"]),
                "distance": np.array([[1.0], [2.0]]),
                "hour": np.array([3, 4], np.int32),
            },
            version=1,
        )
        text = client.predict("vectors", {"text": ["é"]}, signature="strings").outputs["raw_bytes"]
        zeros = client.predict("vectors", {"text": [b"a\0", b"\0"]}, signature="strings").outputs["raw_bytes"]
        wide = client.predict("vectors", {"x": np.arange(300.0).reshape(100, 3)}).outputs["y"]
    assert (lists.outputs["score"].tolist(), lists.version) == ([[2004.0], [2006.0]], 2)
    assert (arrays.outputs["score"].tolist(), arrays.version) == ([[1004.0], [1006.0]], 1)
    assert lists.outputs["score"].dtype == np.float32
    assert (text[0].decode(), list(zeros)) == ("é", [b"a\0", b"\0"])
    assert (wide.shape, float(wide[99, 2])) == ((100, 3), 598.0)


def test_wrong_inputs_are_explained(shared_server: ServerProcess) -> None:
    address = shared_server.address
    right: dict[str, Any] = {"carrier": ["AA"], "distance": [[1.0]], "hour": [1]}
    with ModelServerClient(address) as client:
        for inputs, message in (
            ({**right, "distance": [["far"]]}, "input 'distance' has dtype object"),
            ({**right, "carrier": [1]}, "input 'carrier' has dtype int64; the"),
            ({**right, "distance": [[1.0], [2.0, 3.0]]}, "input 'distance': setting an"),
            ({**right, "hour": [1.5]}, "input 'hour' has dtype float64"),
        ):
            with pytest.raises(ValueError, match=message):
                client.predict("flights", inputs)
        with pytest.raises(ModelServerError, match=rf"{address} refuses: INVALID_ARGUMENT: input size does not match"):
            client.predict("flights", {"carrier": ["AA"]})
        with pytest.raises(ModelServerError, match=rf"{address} answers NOT_FOUND: Servable not found for request"):
            client.predict("flights", {}, version=9)


def test_missing_server_is_named() -> None:
    with pytest.raises(ModelServerError, match=r"127\.0\.0\.1:1 does not answer \(UNAVAILABLE: "):
        ModelServerClient("127.0.0.1:1", timeout_s=60).status("flights")


def test_declared_messages_match_tensorflow_serving() -> None:

    originals = {}
    names = {
        "google.protobuf": "any wrappers",
        "tensorflow.core.example": "example feature",
        "tensorflow.core.framework": "tensor tensor_shape",
        "tensorflow.core.protobuf": "meta_graph saved_model",
        "tensorflow_serving.apis": "classification get_model_metadata get_model_status inference input logging "
        "model_management model predict prediction_log regression status",
        "tensorflow_serving.config": "file_system_storage_path_source log_collector_config logging_config "
        "model_server_config",
    }
    modules = [import_module(f"{package}.{name}_pb2") for package in names for name in names[package].split()]

    def nested_in(message):
        for nested in message.nested_types:
            originals[nested.name] = nested
            nested_in(nested)

    for module in modules:
        for name, message in module.DESCRIPTOR.message_types_by_name.items():
            originals[name] = message
            nested_in(message)
    # Parts of a message: undeclared parts are skipped.
    originals["RequestHead"] = originals["PredictShapes"] = originals["PredictRequest"]
    originals["ResponseSpec"] = originals["PredictResponse"]
    originals["TensorShape"] = originals["TensorProto"]
    originals["MultiInferenceHead"] = originals["MultiInferenceRequest"]
    originals["SerializedInferenceRequest"] = originals["ClassificationRequest"]
    for name in ("ExampleList", "ExampleListWithContext", "Input", "MultiInferenceRequest"):
        originals[f"Serialized{name}"] = originals[name]
    originals["CallLog"] = originals["PredictLog"]

    def kind(field, made):
        # A message within a message may be declared as its bytes.
        as_bytes = field.type == field.TYPE_MESSAGE and made.type == made.TYPE_BYTES
        return field.TYPE_BYTES if as_bytes else field.type

    def values(field):
        return {value.name: value.number for value in field.enum_type.values} if field.enum_type else {}

    # No package of the environment brings these.
    elsewhere = {"BatchingParameters", "HealthCheckRequest", "HealthCheckResponse", "MonitoringConfig", "SSLConfig"}
    elsewhere |= {"PrometheusConfig"}
    elsewhere |= {"SetTrafficRequest", "GetTrafficRequest", "TrafficResponse", "TrafficShare", "CapturedRequest"}
    different = []
    for name, made in protocol.MESSAGES.items():
        if name not in originals and name in elsewhere:
            continue
        for field in made.DESCRIPTOR.fields:
            original = originals[name].fields_by_name.get(field.name)
            same = (
                original is not None
                and (original.number, original.label) == (field.number, field.label)
                and kind(original, field) == field.type
                and values(field).items() <= values(original).items()
            )
            if not same:
                different.append(f"{name}.{field.name}")
    assert different == []


def test_descriptor_set_is_compiled_from_the_proto_file() -> None:
    text = Path(protocol.__file__).with_name("messages.proto").read_text()
    declared = {
        message.split()[0]: set(re.findall(r"^ .+ ([a-z]\w*) = (\d+);$", message, re.MULTILINE))
        for message in text.split("\nmessage ")[1:]
    }
    compiled = {
        name: {(field.name, str(field.number)) for field in message.DESCRIPTOR.fields}
        for name, message in protocol.MESSAGES.items()
    }
    assert compiled == declared
