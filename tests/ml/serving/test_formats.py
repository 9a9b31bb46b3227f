"""Models of every kind behind the one API: TensorFlow 1 and 2, Keras, scikit-learn; every type."""

from __future__ import annotations

import grpc
import numpy as np
import pytest
import tensorflow as tf
from server_process import ServerProcess
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

from airflow_hops.core.serving_api.client import ModelServerClient

pytestmark = pytest.mark.xdist_group("formats")


def test_tensorflow_1_and_keras_models_are_served(formats_server: ServerProcess) -> None:
    body = {"signature_name": "predict", "instances": [{"x": 1.0, "bias": 0.5}]}
    assert formats_server.predict("examples", body) == {"predictions": [2.5]}
    status, message = formats_server.error(
        "/v1/models/examples:predict", {"signature_name": "no_inputs", "instances": [1]}
    )
    assert (status, message) == (400, "Failed to get input map for signature: no_inputs")
    for model in ("keras", "tf_keras"):
        assert formats_server.predict(model, {"instances": [[1, 2, 3]]}) == {"predictions": [[6.0]]}


def test_ragged_input_takes_values_and_row_splits(formats_server: ServerProcess) -> None:
    body = {"inputs": {"words": ["a", "b", "c"], "words_1": [0, 2, 2, 3]}}
    assert formats_server.predict("ragged", body) == {"outputs": ["a b", "", "c"]}
    # An output is a tensor or none at all: TensorFlow Serving has no form for a ragged one.
    body["signature_name"] = "lengths"
    status, message = formats_server.error("/v1/models/ragged:predict", body)
    assert (status, "was not found in the Graph" in message) == (400, True)


def test_tensors_of_every_type_round_trip(formats_server: ServerProcess) -> None:
    """As TensorFlow writes them, in typed fields and in ``tensor_content``, and as ours does."""
    stub = prediction_service_pb2_grpc.PredictionServiceStub(grpc.insecure_channel(formats_server.address))
    names = ["bfloat16", "bool", "complex128", "complex64", "float16", "float64", "int16", "int32", "int8"]
    names += ["string", "uint16", "uint32", "uint64", "uint8"]
    wrong = []
    with ModelServerClient(formats_server.address) as client:
        for name in names:
            for values in ([0], [1], [1, 0, 1], list(range(40))):
                if name == "string":
                    array = np.array([b"a\0" * value for value in values], object)
                else:
                    array = np.array(values).astype(tf.as_dtype(name).as_numpy_dtype)
                request = predict_pb2.PredictRequest()
                request.model_spec.name = "types"
                request.model_spec.signature_name = name
                request.inputs["x"].CopyFrom(tf.make_tensor_proto(array, shape=array.shape))
                output = stub.Predict(request).outputs["y"]
                typed = not output.tensor_content
                ours = client.predict("types", {"x": array}, signature=name).outputs["y"]
                same = np.array_equal(tf.make_ndarray(output), array) and np.array_equal(ours, array)
                if not (typed and same and output.dtype == tf.as_dtype(name).as_datatype_enum):
                    wrong.append([name, values])
    assert wrong == []


def test_rest_refuses_complex_numbers_and_bfloat16(formats_server: ServerProcess) -> None:
    for kind in ("complex64", "bfloat16"):
        body = {"signature_name": kind, "inputs": [1.0]}
        status, message = formats_server.error("/v1/models/types:predict", body)
        assert status == 501
        assert message.endswith(f"to type: {kind}")


def test_integers_are_exact_and_bounded_in_json(formats_server: ServerProcess) -> None:
    for kind, low, high in (("int8", -(2**7), 2**7 - 1), ("uint32", 0, 2**32 - 1), ("uint64", 0, 2**64 - 1)):
        assert formats_server.predict("types", {"signature_name": kind, "inputs": [low, high]}) == {
            "outputs": [low, high]
        }
        error = formats_server.error("/v1/models/types:predict", {"signature_name": kind, "inputs": [low - 1]})
        assert error == (400, f"JSON Value: {low - 1} Type: Number is not of expected type: {kind}")
    _, body = formats_server.call("/v1/models/types:predict", {"signature_name": "bool", "inputs": [True, False]})
    assert body == {"outputs": [True, False]}


def test_wrong_inputs_are_explained(formats_server: ServerProcess) -> None:
    for model, inputs, message in (
        ("matrix", [[1.0, 2.0, 3.0]], "input inputs has shape [1, 3]; expected [batch, 2]"),
        ("delays", {"carrier": ["AA"], "distance": [1.0, 2.0], "hour": [1]}, "carrier 1, distance 2, hour 1"),
        ("delays", {"carrier": [["AA", "UA"]], "distance": [1.0], "hour": [1]}, "input carrier has shape [1, 2]"),
        ("delays", {"carrier": ["AA"], "distance": [float("nan")], "hour": [1]}, "contains NaN"),
        ("wine", {"alcohol": [0.5]}, "Missing named input: hue in 'inputs' object."),
        ("wine", {"alcohol": ["0.5"], "hue": [1.0]}, "is not of expected type: float"),
        ("wine", {"alcohol": [0.5, 1.0], "hue": [1.0]}, "inputs differ in their 0th dimension: alcohol 2, hue 1"),
        ("wine", {"alcohol": [[0.5, 1.0]], "hue": [1.0]}, "input alcohol has shape [1, 2]; expected [batch]"),
        ("graph", {"x": [[1.0]], "said": ["a"]}, "input x has shape [1, 1]; expected [batch, 2]"),
    ):
        status, result = formats_server.error(f"/v1/models/{model}:predict", {"inputs": inputs})
        assert (status, message in result) == (400, True), (model, result)


def test_failed_model_load_is_explained(formats_server: ServerProcess) -> None:
    for model, code, message in (
        ("pickled", "FAILED_PRECONDITION", "model.pkl is a pickle, which runs whatever code it holds"),
        ("unsigned", "INVALID_ARGUMENT", "unsigned/1: neither signature.json nor MLmodel"),
        ("outside", "FAILED_PRECONDITION", "External data path escapes model directory"),
        ("future", "FAILED_PRECONDITION", "Opset 99 is under development"),
        ("unknown_operator", "FAILED_PRECONDITION", "No Op registered for Fold"),
        ("no_graph", "INVALID_ARGUMENT", "rotobuf parsing failed"),
        ("no_text", "INVALID_ARGUMENT", "can't decode byte 0xff"),
    ):
        (version,) = formats_server.call(f"/v1/models/{model}")[1]["model_version_status"]
        assert (version["state"], version["status"]["error_code"]) == ("END", code), model
        assert message in version["status"]["error_message"]
