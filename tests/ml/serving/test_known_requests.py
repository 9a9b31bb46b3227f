"""Requests read by the places of their values, beside requests of the same size that are others."""

from __future__ import annotations

import grpc
import numpy as np
import pytest
from server_process import ServerProcess

from airflow_hops.core.serving_api import protocol, tensors

RANDOM = np.random.default_rng(5)


def request(model: str, signature: str, inputs: dict[str, np.ndarray], as_content: bool, outputs: str = "") -> bytes:
    message = protocol.PredictRequest()
    message.model_spec.name, message.model_spec.signature_name = model, signature
    if outputs:
        message.output_filter.append(outputs)
    for alias, array in inputs.items():
        tensors.fill_proto(message.inputs[alias], array, as_content=as_content)
    encoded: bytes = message.SerializeToString(deterministic=True)
    return encoded


def test_each_of_many_alike_gets_its_own_answer_and_one_that_differs_gets_its_error(
    shared_server: ServerProcess,
) -> None:
    with grpc.insecure_channel(shared_server.address) as channel:
        predict = channel.unary_unary(str(protocol.Method.PREDICT))

        def answer(*given: object) -> dict[str, np.ndarray]:
            response = protocol.PredictResponse.FromString(predict(request(*given)))  # type: ignore[arg-type]
            return {alias: tensors.from_proto(proto) for alias, proto in response.outputs.items()}

        def refusal(*given: object) -> tuple[grpc.StatusCode, str]:
            with pytest.raises(grpc.RpcError) as caught:
                answer(*given)
            return caught.value.code(), caught.value.details()

        for turn in range(30):
            x = RANDOM.normal(size=(2, 3)).astype(np.float32)
            for as_content in (False, True):
                found = answer("vectors", "serving_default", {"x": x}, as_content)["y"]
                np.testing.assert_array_equal(found, 2 * x)
            texts = np.array([bytes(RANDOM.integers(0, 256, 4, np.uint8)) for _ in range(2)], object)
            assert answer("vectors", "strings", {"text": texts}, False, "raw_bytes").keys() == {"raw_bytes"}
            assert answer("vectors", "strings", {"text": texts}, False)["raw_bytes"].tolist() == texts.tolist()
            # The same sizes: another name, another shape, another signature.
            code, message = refusal("vectors", "serving_default", {"z": x}, False)
            assert code is grpc.StatusCode.INVALID_ARGUMENT
            assert "x" in message
            turned = answer("vectors", "serving_default", {"x": x.reshape(3, 2)}, True)["y"]
            np.testing.assert_array_equal(turned, 2 * x.reshape(3, 2))
            assert refusal("vectors", "serving_defau1t", {"x": x}, True) == (
                grpc.StatusCode.FAILED_PRECONDITION,
                'Serving signature key "serving_defau1t" not found.',
            )
            rows = {
                "carrier": np.array([b"AA"], object),
                "distance": RANDOM.normal(size=(1, 1)).astype(np.float32),
                "hour": np.array([turn], np.int64),
            }
            expected = rows["distance"] + turn + 2000
            np.testing.assert_allclose(answer("flights", "", rows, False)["score"], expected, rtol=1e-6)
