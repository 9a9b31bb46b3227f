"""Classify, Regress and MultiInference, asked with TensorFlow's own stubs and clients, and over REST."""

from __future__ import annotations

import base64
import math

import grpc
import pytest
import tensorflow as tf
from server_process import ServerProcess
from tensorflow_serving.apis import classification_pb2, inference_pb2, prediction_service_pb2_grpc, regression_pb2

from .test_predict import refusal, with_spec

CLASSIFY = "/v1/models/examples:classify"
REGRESS = "/v1/models/examples:regress"
ROWS = [{"x": 1.5}, {"x": [-0.25], "bias": 2.0}]


def test_rest_classify_answers_pairs_of_label_and_score(formats_server: ServerProcess) -> None:
    status, answer = formats_server.call(CLASSIFY, {"examples": ROWS})
    assert (status, answer) == (200, {"results": [[["up", 3.0], ["down", -3.0]], [["up", 1.5], ["down", -1.5]]]})
    labels = formats_server.call(CLASSIFY, {"signature_name": "labels", "examples": ROWS[:1]})[1]
    assert labels == {"results": [[["up", 0.0], ["down", 0.0]]]}
    scores = formats_server.call(CLASSIFY, {"signature_name": "scores", "examples": [{"x": 0.1}]})[1]
    assert scores == {"results": [[["", 0.2], ["", -0.2]]]}


def test_rest_regress_answers_values(formats_server: ServerProcess) -> None:
    for signature in ("value", "column"):
        answer = formats_server.call(REGRESS, {"signature_name": signature, "examples": ROWS})[1]
        assert answer == {"results": [3.0, 1.5]}
    versioned = "/v1/models/examples/versions/1:REGRESS"
    assert formats_server.call(versioned, {"signature_name": "value", "examples": [{"x": 0.1}]})[1] == {
        "results": [0.2]
    }


def test_context_supplies_missing_features(formats_server: ServerProcess) -> None:
    body = {"signature_name": "value", "context": {"bias": 10.0}, "examples": ROWS}
    assert formats_server.call(REGRESS, body)[1] == {"results": [13.0, 1.5]}


def test_a_signature_of_tensorflow_2_answers_whatever_its_method_name(formats_server: ServerProcess) -> None:
    answer = formats_server.call("/v1/models/native:classify", {"examples": [{"x": 1.5}]})[1]
    assert answer == {"results": [[["", 3.0], ["", -3.0]]]}
    value = formats_server.call("/v1/models/native:regress", {"signature_name": "value", "examples": [{"x": 1.5}]})[1]
    assert value == {"results": [3.0]}


def test_non_finite_results_are_unquoted(formats_server: ServerProcess) -> None:
    body = b'{"signature_name": "value", "examples": [{"x": NaN}, {"x": -Infinity}, {"x": [1e9]}]}'
    results = formats_server.call(REGRESS, body)[1]["results"]
    assert math.isnan(results[0])
    assert results[1:] == [-math.inf, 2e9]


def test_every_kind_of_feature_is_read(formats_server: ServerProcess) -> None:
    encoded = base64.b64encode(b"\xff\x00").decode()
    body = {"examples": [{"x": 1.0, "n": [1, True], "s": ["é", {"b64": encoded}], "none": []}]}
    assert formats_server.call(CLASSIFY, body)[1] == {"results": [[["up", 2.0], ["down", -2.0]]]}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "JSON Parse error: The document is empty"),
        ([], "JSON Value: [] Is not object"),
        ({}, "JSON Value: {} When method is classify, key 'examples' is expected and was not found"),
        ({"examples": 1}, " Expecting 'examples' value to be an list/array"),
        ({"examples": []}, " 'examples' value is an empty array"),
        ({"examples": [1]}, "Example must be JSON object but got JSON Number"),
        ({"examples": [{}], "context": False}, "Example must be JSON object but got JSON False"),
        (
            {"examples": [{}], "signature_name": 1},
            "not formatted correctly. 'signature_name' key must be a string value.",
        ),
        ({"examples": [{"x": [1.0, None]}]}, "unexpected JSON type: Null. A missing value is null or an empty list"),
        ({"examples": [{"x": [[1.0]]}]}, "Feature: x has element with unexpected JSON type: Array"),
        ({"examples": [{"x": {"y": 1}}]}, "Feature: x has element with unexpected JSON type: Object"),
        ({"examples": [{"x": [1.0, 2]}]}, "Unexpected element type in feature: x expecting type: float"),
        ({"examples": [{"x": [1, "a"]}]}, "Unexpected element type in feature: x expecting type: int64"),
        ({"examples": [{"x": ["a", 1.0]}]}, "Unexpected element type in feature: x expecting type: bytes"),
        ({"examples": [{"x": 2**63}]}, "Feature: x has uint64 element. Only int64 is supported."),
        ({"examples": [{"x": 1e39}]}, "Cannot convert JSON value: 1e+39 to float without loss of precision."),
        ({"examples": [{"x": {"b64": "?"}}]}, "Unable to base64 decode"),
        ({"examples": [{"x": ["a"]}]}, "Data types don't match. Data type: string but expected type: float"),
        ({"examples": [{}]}, "Feature: x (data type: float) is required but could not be found."),
        ({"examples": [{"x": None}]}, "Feature: x (data type: float) is required but could not be found."),
    ],
)
def test_wrong_body_gets_tensorflow_servings_message(formats_server: ServerProcess, body: object, message: str) -> None:
    status, result = formats_server.error(CLASSIFY, body)
    assert status == 400
    assert message in result


@pytest.mark.parametrize(
    ("verb", "signature", "message"),
    [
        ("classify", "odd", "No signature was found with the name: odd"),
        ("classify", "two_inputs", "Expected one input Tensor."),
        ("classify", "misnamed_inputs", "No classification inputs found in SignatureDef: inputs {"),
        ("classify", "misnamed_outputs", 'outputs to contain at least one of "classes" or "scores". Signature was: '),
        ("classify", "flat_scores", "Expected Tensor shape: [batch_size num_classes] but got [2]"),
        ("classify", "wide_scores", "Expected scores Tensor of DT_FLOAT. Got: DT_DOUBLE"),
        ("classify", "numbers_for_classes", "Expected classes Tensor of DT_STRING. Got: DT_FLOAT"),
        ("classify", "one_class_less", "Tensors class and score should match in dim_size(1). Got 1 vs. 2"),
        ("classify", "one_row_less", "Expected scores output batch size of 2. Got: 1"),
        ("regress", "odd", "No signature was found with the name: odd"),
        ("regress", "two_values", "Expected one output Tensor."),
        ("regress", "misnamed_value", "No regression outputs found in SignatureDef: inputs {"),
        ("regress", "pairs", "Expected output Tensor shape to be either [batch_size] or [batch_size, 1] but got [2,2]"),
        ("regress", "one_value_less", "Input batch size did not match output batch size: 2 vs. 1"),
        ("regress", "wide_value", "Expected output Tensor of DT_FLOAT.  Got: DT_DOUBLE"),
    ],
)
def test_wrong_signature_gets_tensorflow_servings_message(
    formats_server: ServerProcess, verb: str, signature: str, message: str
) -> None:
    body = {"signature_name": signature, "examples": [{"x": 1.0}, {"x": 2.0}]}
    status, result = formats_server.error(f"/v1/models/examples:{verb}", body)
    assert status == 400
    assert message in result


def example(**features: float) -> tf.train.Example:
    made = tf.train.Example()
    for name, value in features.items():
        made.features.feature[name].float_list.value.append(value)
    return made


TWO_EXAMPLES = (example(x=1.5), example(x=0.5))


def test_tensorflow_serving_stubs_are_answered(formats_server: ServerProcess) -> None:
    stub = prediction_service_pb2_grpc.PredictionServiceStub(grpc.insecure_channel(formats_server.address))
    classify, regress = classification_pb2.ClassificationRequest, regression_pb2.RegressionRequest

    def request(kind, signature="", examples=TWO_EXAMPLES, context=None, model="examples"):
        made = with_spec(kind(), model, signature=signature)
        if context is not None:
            made.input.example_list_with_context.context.CopyFrom(context)
            made.input.example_list_with_context.examples.extend(examples)
        elif examples is not None:
            made.input.example_list.examples.extend(examples)
        return made

    def multi(*tasks, examples=TWO_EXAMPLES[:1]):
        made = inference_pb2.MultiInferenceRequest()
        for model, signature, method in tasks:
            task = made.tasks.add(method_name=f"tensorflow/serving/{method}")
            with_spec(task, model, signature=signature)
        made.input.example_list.examples.extend(examples)
        return made

    def spec(message):
        return [message.model_spec.name, message.model_spec.signature_name, message.model_spec.version.value]

    def classes(result):
        return [[(one.label, one.score) for one in row.classes] for row in result.classifications]

    classified = stub.Classify(request(classify))
    assert classes(classified.result) == [[("up", 3.0), ("down", -3.0)], [("up", 1.0), ("down", -1.0)]]
    assert spec(classified) == ["examples", "serving_default", 1]
    regressed = stub.Regress(request(regress, "value", context=example(bias=10.0)))
    assert [row.value for row in regressed.result.regressions] == [13.0, 11.0]
    assert spec(regressed) == ["examples", "value", 1]
    for model, labels in (("examples", ["up", "down"]), ("native", ["", ""])):
        both = stub.MultiInference(multi((model, "", "classify"), (model, "value", "regress"))).results
        assert classes(both[0].classification_result) == [[(labels[0], 3.0), (labels[1], -3.0)]]
        assert both[1].regression_result.regressions[0].value == 3.0
        assert [spec(result) for result in both] == [[model, "serving_default", 1], [model, "value", 1]]

    invalid, one = "INVALID_ARGUMENT", ("examples", "", "classify")
    twice, odd = ("examples", "serving_default", "classify"), ("examples", "odd", "regress")
    short, predicts = ("examples", "one_value_less", "regress"), ("examples", "predict", "predict")
    other_model = "All ModelSpecs in a MultiInferenceRequest must access the same model name."
    no_name, method = "Found ModelSpec with an empty model name.", "tensorflow/serving/predict"
    for call, asked, *expected in (
        (stub.Classify, request(classify, examples=None), invalid, "Input is empty."),
        (stub.Regress, request(regress, "value", examples=()), invalid, "Input is empty."),
        (stub.Classify, classify(), invalid, "Missing ModelSpec"),
        (stub.Regress, request(regress, model="nope"), "NOT_FOUND", "Servable not found for request: Latest(nope)"),
        (stub.Classify, request(classify, "odd"), invalid, "No signature was found with the name: odd"),
        (stub.Regress, request(regress, "serving_default"), invalid, "Expected one output Tensor."),
        (stub.MultiInference, multi(), invalid, "ModelSpec has no name specified."),
        (stub.MultiInference, multi(one, ("native", "", "classify")), invalid, other_model),
        (stub.MultiInference, multi(one, twice), invalid, "Duplicate evaluation of signature: serving_default"),
        (stub.MultiInference, multi(one, ("", "value", "regress")), invalid, no_name),
        (stub.MultiInference, multi(one, odd), invalid, "Requested signature not found in model graph: odd"),
        (stub.MultiInference, multi(predicts), "UNIMPLEMENTED", f"Unsupported signature method_name: {method}"),
        (stub.MultiInference, multi(one, examples=()), invalid, "Input is empty."),
        (stub.MultiInference, multi(one, short), invalid, "Input batch size did not match output batch size: 1 vs. 0"),
    ):
        assert refusal(call, asked) == expected
    assert refusal(stub.Classify, request(classify, examples=[example(y=1.0)]))[0] == invalid
    unsuitable = refusal(stub.MultiInference, multi(one, ("examples", "pairs", "classify")))
    assert unsuitable[1].startswith("Expected classification signature output")
