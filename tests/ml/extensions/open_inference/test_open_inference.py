"""The Open Inference Protocol through real HTTP and gRPC: answers, and everything around them, are those of v1."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from server_process import ServerProcess, Start, versions, write_models

from airflow_hops.core.serving_api.answers import ModelServerError
from airflow_hops.core.serving_api.client import ModelServerClient
from airflow_hops.testing.server_parts import ServerPartContract
from tests.ml.extensions.open_inference.v2_client import FORMS, Refused, V2Client, datatype, infer_body, numpy_type

ROWS = {
    "carrier": np.array([b"AA", b"", b"\xc3\xa9"], object),
    "distance": np.array([[733.0], [np.nan], [1.5]], np.float32),
    "hour": np.array([5, 6, 2**60], np.int64),
}
CLEAN = {name: array[:1] for name, array in ROWS.items()}
REFUSED = "refused"
GUARDED = ("", "/models/flights", "/models/flights/ready")


class TestContract(ServerPartContract):
    name = "open_inference"


@pytest.fixture
def flights(start_server: Start, saved_models: Path, tmp_path: Path) -> ServerProcess:
    """Two versions of flights with a split, labels, capture and tokens."""
    labels = 'version_labels { key: "stable" value: 1 } version_labels { key: "canary" value: 2 }'
    config = write_models(tmp_path, flights=(saved_models / "flights", f"{versions(1, 2)} {labels}"))
    (tmp_path / "traffic.json").write_text(json.dumps({"models": {"flights": {"1": 80, "2": 20}}}))
    for name in ("control", "prediction"):
        (tmp_path / name).write_text(f"{name}-1\n")
    server = start_server(
        model_config_file=config,
        allow_version_labels_for_unavailable_models="true",
        traffic_config_file=tmp_path / "traffic.json",
        capture_base_path=tmp_path / "captured",
        control_token_file=tmp_path / "control",
        prediction_token_file=tmp_path / "prediction",
        max_request_memory_bytes=40_000_000,
    )
    server.token = "control-1"
    return server


def test_split_capture_counts_and_tokens_are_those_of_v1(flights: ServerProcess, tmp_path: Path) -> None:
    token = {"Authorization": "Bearer prediction-1"}
    of_v1 = {"inputs": {"carrier": ["AA", "", "é"], "distance": [[733.0], [None], [1.5]], "hour": [5, 6, 2**60]}}
    expected = flights.predict("flights/labels/canary", of_v1, headers={"x-request-id": "v1"})["outputs"]
    score = np.array(expected["score"], np.float32)
    answered = Counter[str]()
    with V2Client(flights) as client:
        for form in FORMS:
            answer = client.infer("flights", ROWS, form, version="canary", request_id=f"of-{form}", headers=token)
            assert (answer.version, answer.request_id, answer.outputs["carrier_id"].tolist()) == (
                "2",
                f"of-{form}",
                [1, -1, -1],
            )
            np.testing.assert_array_equal(answer.outputs["score"], score)
            with pytest.raises(Refused, match="input distance is FP64; expected FP32"):
                client.infer("flights", {**CLEAN, "distance": np.ones((1, 1))}, form, version="1", headers=token)
            for wrong, code in (
                ({}, (401, "UNAUTHENTICATED")),
                ({"Authorization": "Bearer x"}, (401, "UNAUTHENTICATED")),
            ):
                with pytest.raises(Refused) as refused:
                    client.infer("flights", CLEAN, form, headers=wrong)
                assert refused.value.code in code
            answered.update(client.infer("flights", CLEAN, form, headers=token).version for _ in range(40))
            sticky = {**token, "x-sticky-key": "k7"}
            keyed = {client.infer("flights", CLEAN, form, headers=sticky).version for _ in range(3)}
            assert keyed == {
                str(int(flights.predict("flights", as_v1(CLEAN), headers=sticky)["outputs"]["score"][0][0] / 1000))
            }
        drawn = 40 * len(FORMS)  # a fifth goes to version 2, give or take five standard deviations
        assert answered.keys() == {"1", "2"} and abs(answered["2"] - drawn / 5) < 5 * (drawn * 0.16) ** 0.5
        for form in ("binary", "raw"):
            with pytest.raises(Refused, match="takes more memory than there is"):
                client.infer("flights", {"carrier": np.full(300_000, b"", object)}, form, version="1", headers=token)
        generated = client.infer("flights", CLEAN, "json", headers=token)
        assert generated.request_id == generated.headers["X-Request-Id"]
        for path in GUARDED:
            assert flights.call(f"/v2{path}", headers={"Authorization": ""})[0] == 401
        assert [client.get(f"/health/{name}") for name in ("live", "ready")] == [{"live": True}, {"ready": True}]
        assert (client.call("ServerLive").live, client.call("ServerReady").ready) == (True, True)
        for method in ("ModelReady", "ModelMetadata", "ServerMetadata"):
            with pytest.raises(Refused, match="'Authorization: Bearer TOKEN'"):
                client.call(method, **({} if method == "ServerMetadata" else {"name": "flights"}))
    counts = flights.get("/v1/stats")["models"]["flights"]["versions"]
    sent = 1 + len(FORMS) * (1 + 1 + 40 + 3 + 1) + 2 + 1  # with errors
    assert sum(each["requests"] for each in counts.values()) == sent
    assert counts["1"]["client_errors"] == len(FORMS)
    flights.flush()
    tables = [pq.read_table(file) for file in sorted((tmp_path / "captured" / "flights").glob("*.parquet"))]
    rows = [row for table in tables for row in table.to_pylist()]
    by_id = {
        name: [
            {
                key: repr(value)
                for key, value in row.items()
                if key not in ("request_id", "captured_at", "latency_ms", "api")
            }
            for row in rows
            if row["request_id"] == name
        ]
        for name in ("v1", *(f"of-{form}" for form in FORMS))
    }
    assert all(each == by_id["v1"] for each in by_id.values())
    assert len(by_id["v1"]) == 3


def as_v1(arrays: dict[str, np.ndarray[Any, Any]]) -> dict[str, Any]:
    """The same request of v1."""
    return {
        "inputs": {
            name: [value.decode() for value in array] if array.dtype == object else array.tolist()
            for name, array in arrays.items()
        }
    }


def test_versions_metadata_and_readiness(shared_server: ServerProcess) -> None:
    with V2Client(shared_server) as client:
        document = client.get("/models/flights/versions/1")
        assert (document["versions"], document["platform"]) == (["1", "2"], "SavedModel")
        assert document["inputs"][1] == {"name": "distance", "datatype": "FP32", "shape": [-1, 1]}
        message = client.call("ModelMetadata", name="flights", version="stable")
        assert [each.name for each in message.inputs] == ["carrier", "distance", "hour"]
        assert list(message.outputs[1].shape) == [-1, 1]
        assert client.get("")["extensions"] == ["binary_tensor_data"]
        assert client.call("ServerMetadata").name == "airflow-hops"
        assert client.get("/models/flights/versions/canary/ready") == {"name": "flights", "ready": True}
        for name, version, code in (("flights", "9", 404), ("none", "", 404), ("flights", "none", 400)):
            assert not client.call("ModelReady", name=name, version=version).ready
            for path in ("", "/ready"):
                with pytest.raises(Refused) as refused:
                    client.get(f"/models/{name}{f'/versions/{version}' if version else ''}{path}")
                assert refused.value.code == code
        assert client.call("ModelReady", name="flights", version="2").ready
        for version, answering in (("1", "1"), ("2", "2"), ("stable", "1"), ("canary", "2")):
            for form in FORMS:
                assert client.infer("flights", CLEAN, form, version=version).version == answering


@pytest.mark.parametrize("form", FORMS)
def test_signature_and_outputs_are_chosen(shared_server: ServerProcess, form: str) -> None:
    text = {"text": np.array([b"abc", b"d"], object)}
    with V2Client(shared_server) as client:
        answer = client.infer("vectors", text, form, outputs=["upper"], signature_name="strings")
        assert {name: array.tolist() for name, array in answer.outputs.items()} == {"upper": [b"ABC", b"D"]}
        both = client.infer("vectors", text, form, outputs=["upper", "raw_bytes"], signature_name="strings")
        assert list(both.outputs) == ["upper", "raw_bytes"]
        for options, message in (
            ({"outputs": ["z"], "signature_name": "strings"}, "output tensor alias not found in signature: z"),
            ({"signature_name": "none"}, '"none" not found'),
        ):
            with pytest.raises(Refused, match=message):
                client.infer("vectors", text, form, **options)


def test_values_that_json_does_not_have(shared_server: ServerProcess) -> None:
    with V2Client(shared_server) as client:

        def divide(value: float, form: str) -> list[float]:
            x = {"x": np.array([value], np.float32)}
            values: list[float] = client.infer("vectors", x, form, signature_name="divide").outputs["y"].tolist()
            return values

        assert [divide(0.0, form) for form in ("binary", "typed", "raw")] == [[np.inf]] * 3
        with pytest.raises(Refused, match="output y holds infinite values, which JSON does not have"):
            divide(0.0, "json")
        assert all(np.isnan(divide(np.nan, form)).all() for form in FORMS)  # null in JSON
        bytes_ = {"text": np.array([b"\xff\x00", b"", b"a"], object)}
        for form in ("binary", "typed", "raw"):
            answer = client.infer("vectors", bytes_, form, outputs=["raw_bytes"], signature_name="strings")
            assert answer.outputs["raw_bytes"].tolist() == [b"\xff\x00", b"", b"a"]
        body, headers = infer_body({"text": np.array([b"/wA=", b"", b"YQ=="], object)}, "json", outputs=["raw_bytes"])
        document = {**json.loads(body), "parameters": {"signature_name": "strings"}}
        document["inputs"][0]["parameters"] = {"content_type": "base64"}
        with pytest.raises(Refused, match="output raw_bytes holds bytes that are not UTF-8"):
            client.post("/models/vectors/infer", json.dumps(document).encode(), headers)
        document["outputs"][0]["parameters"] = {"content_type": "base64"}
        answered, _ = client.post("/models/vectors/infer", json.dumps(document).encode(), headers)
        (output,) = json.loads(answered)["outputs"]
        assert (output["data"], output["parameters"]) == (["/wA=", "", "YQ=="], {"content_type": "base64"})


def test_each_type_is_echoed_or_refused_by_name(formats_server: ServerProcess) -> None:
    wrong = []
    with V2Client(formats_server) as client:
        for name in ("bool", "float16", "float64", "int16", "int32", "int8", "uint16", "uint32", "uint64", "uint8"):
            kind = np.dtype(name)
            limits = [] if kind.kind in "fb" else [np.iinfo(kind).min, np.iinfo(kind).max]
            values = np.array([0, 1, *limits], kind)
            for form in FORMS:
                try:
                    echoed = client.infer("types", {"x": values}, form, signature_name=name).outputs["y"]
                except (Refused, KeyError) as error:
                    echoed = str(error)
                has_no_contents = form == "typed" and name == "float16"
                if not (has_no_contents or (np.array_equal(echoed, values) and echoed.dtype == kind)):
                    wrong.append((name, form, echoed))
        assert not wrong
        half = client.rpc("ModelInfer", half_in_typed_request("types"))
        assert (half.outputs[0].datatype, len(half.raw_output_contents)) == ("FP16", 1)
        for name in ("complex64", "complex128"):
            with pytest.raises(Refused, match=f"input x of the model is {name}, which the Open Inference Protocol"):
                client.infer("types", {"x": np.zeros(1, np.float32)}, "json", signature_name=name)
        with pytest.raises(Refused, match='"serving_default" not found'):
            client.get("/models/types")


def half_in_typed_request(model: str) -> bytes:
    """A request whose FP16 has to be raw."""
    from tests.ml.extensions.open_inference.v2_client import infer_message

    message: bytes = infer_message(
        model, {"x": np.ones(2, np.float16)}, "raw", signature_name="float16"
    ).SerializeToString()
    return message


def test_each_format_answers_as_through_v1(formats_server: ServerProcess) -> None:
    """Every model whose metadata v2 can say: made-up inputs get v1's answer, or its error."""
    platforms, wrong = set(), []
    with V2Client(formats_server) as client, ModelServerClient(formats_server.address) as v1:
        for model in formats_server.get("/readyz")["models"]:
            try:
                document = client.get(f"/models/{model}")
            except Refused as error:
                assert error.code == 400  # noqa: PT017
                continue
            arrays = {each["name"]: made_up(each) for each in document["inputs"]}
            expected = outcome(lambda model=model, arrays=arrays: v1.predict(model, arrays).outputs)
            platforms |= {document["platform"]} - ({""} if isinstance(expected, dict) else {document["platform"]})
            for form in FORMS:
                answer = outcome(
                    lambda model=model, arrays=arrays, form=form: client.infer(model, arrays, form).outputs
                )
                if str(answer) != str(expected):
                    wrong.append((model, form, answer, expected))
    assert not wrong
    assert platforms == {"SavedModel", "ONNX", "scikit-learn"}


def made_up(tensor: dict[str, Any]) -> np.ndarray[Any, Any]:
    shape = [2 if size < 0 else size for size in tensor["shape"]]
    if tensor["datatype"] == "BYTES":
        return np.full(shape, b"AA", object)
    return np.ones(shape, numpy_type(tensor["datatype"]))


def outcome(ask: Any) -> Any:
    """The outputs of an answer, with NaN as text; REFUSED for an error."""
    try:
        return {name: (datatype(array), str(array.tolist())) for name, array in sorted(ask().items())}
    except (Refused, ModelServerError):
        return REFUSED


def test_models_of_other_servers_are_answered(start_server: Start, shared_server: ServerProcess) -> None:
    gateway = start_server(upstream=shared_server.address)
    with V2Client(gateway) as client, V2Client(shared_server) as direct:
        for form in FORMS:
            for version in ("", "1", "canary"):
                answers = [each.infer("flights", CLEAN, form, version=version) for each in (client, direct)]
                assert answers[0].version == answers[1].version
                assert answers[0].outputs["score"] == answers[1].outputs["score"]
        assert client.get("/models/flights/versions/1")["inputs"] == direct.get("/models/flights")["inputs"]
