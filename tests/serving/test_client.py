"""The gRPC client, and the messages that it declares for itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.serving.conftest import Server

pytestmark = pytest.mark.runtime


def test_inputs_are_converted_to_the_signatures_types(shared_server: Server, in_runtime: Callable[..., Any]) -> None:
    result = in_runtime(
        """
        import numpy as np
        from airflow_hops.serving_api.client import ModelServerClient
        with ModelServerClient(address) as client:
            lists = client.predict("flights", {"carrier": ["AA", "ZZ"], "distance": [[1], [2]], "hour": [3, 4]})
            arrays = client.predict("flights", {
                "carrier": np.array(["AA", "ZZ"]),
                "distance": np.array([[1.0], [2.0]]),
                "hour": np.array([3, 4], np.int32),
            }, version=1)
            text = client.predict("vectors", {"text": ["é"]}, signature="strings").outputs["raw_bytes"]
            zeros = client.predict("vectors", {"text": [b"a\\0", b"\\0"]}, signature="strings").outputs["raw_bytes"]
            wide = client.predict("vectors", {"x": np.arange(300.0).reshape(100, 3)}).outputs["y"]
            result = [
                lists.outputs["score"].tolist(), lists.version, arrays.outputs["score"].tolist(), arrays.version,
                str(lists.outputs["score"].dtype), text[0].decode(), wide.shape, float(wide[99, 2]),
                [value.hex() for value in zeros],
            ]
        """,
        address=shared_server.address,
    )
    assert result == [[[2004.0], [2006.0]], 2, [[1004.0], [1006.0]], 1, "float32", "é", [100, 3], 598.0, ["6100", "00"]]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("{'carrier': ['AA'], 'distance': [['far']], 'hour': [1]}", "ValueError: input 'distance' has dtype object"),
        ("{'carrier': [1], 'distance': [[1.0]], 'hour': [1]}", "ValueError: input 'carrier' has dtype int64; the"),
        (
            "{'carrier': ['AA'], 'distance': [[1.0], [2.0, 3.0]], 'hour': [1]}",
            "ValueError: input 'distance': setting an",
        ),
        ("{'carrier': ['AA'], 'distance': [[1.0]], 'hour': [1.5]}", "ValueError: input 'hour' has dtype float64"),
        ("{'carrier': ['AA']}", "ModelServerError: INVALID_ARGUMENT from {address}: input size does not match"),
        ("{}, version=9", "ModelServerError: NOT_FOUND from {address}: Servable not found for request: Specific"),
    ],
)
def test_wrong_inputs_are_said_in_words(
    shared_server: Server, in_runtime: Callable[..., Any], call: str, message: str
) -> None:
    result = in_runtime(
        "from airflow_hops.serving_api.client import ModelServerClient\n"
        f"ModelServerClient(address).predict('flights', {call})",
        address=shared_server.address,
    )
    assert message.format(address=shared_server.address) in result["error"]


def test_server_that_is_not_there_is_named(in_runtime: Callable[..., Any]) -> None:
    result = in_runtime(
        "from airflow_hops.serving_api.client import ModelServerClient\n"
        "ModelServerClient('127.0.0.1:1', timeout_s=2).status('flights')"
    )
    assert result["error"].startswith("ModelServerError: UNAVAILABLE from 127.0.0.1:1: ")


def test_declared_messages_are_those_of_tensorflow_serving(in_runtime: Callable[..., Any]) -> None:
    different = in_runtime(
        """
        from google.protobuf import any_pb2, descriptor, wrappers_pb2
        from tensorflow.core.example import example_pb2, feature_pb2
        from tensorflow.core.framework import tensor_pb2, tensor_shape_pb2
        from tensorflow.core.protobuf import meta_graph_pb2
        from tensorflow_serving.apis import get_model_metadata_pb2, get_model_status_pb2, model_pb2, predict_pb2
        from tensorflow_serving.apis import inference_pb2, logging_pb2, model_management_pb2, prediction_log_pb2
        from tensorflow_serving.apis import classification_pb2, input_pb2, regression_pb2, status_pb2
        from tensorflow_serving.config import log_collector_config_pb2, logging_config_pb2, model_server_config_pb2
        from tensorflow_serving.config import file_system_storage_path_source_pb2
        from airflow_hops.serving_api import protocol

        originals = {}
        modules = (any_pb2, wrappers_pb2, tensor_pb2, tensor_shape_pb2, meta_graph_pb2, get_model_metadata_pb2,
                   get_model_status_pb2, inference_pb2, logging_pb2, model_management_pb2, model_pb2, predict_pb2,
                   prediction_log_pb2, status_pb2, classification_pb2, example_pb2, feature_pb2, input_pb2,
                   regression_pb2,
                   log_collector_config_pb2, logging_config_pb2, model_server_config_pb2,
                   file_system_storage_path_source_pb2)
        def nested_in(message):
            for nested in message.nested_types:
                originals[nested.name] = nested
                nested_in(nested)
        for module in modules:
            for name, message in module.DESCRIPTOR.message_types_by_name.items():
                originals[name] = message
                nested_in(message)
        # Parts of a message: what is not declared is passed over.
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
        elsewhere = {"BatchingParameters", "HealthCheckRequest", "HealthCheckResponse", "MonitoringConfig"}
        elsewhere |= {"ProfileOptions", "ProfileRequest", "ProfileResponse", "PrometheusConfig", "TerminateRequest"}
        elsewhere |= {"SetTrafficRequest", "GetTrafficRequest", "TrafficResponse", "TrafficShare", "SSLConfig"}
        result = []
        for name, made in protocol._CLASSES.items():
            if name not in originals and (name.endswith("Scope") or name in elsewhere):
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
                    result.append(f"{name}.{field.name}")
        """
    )
    assert different == []
