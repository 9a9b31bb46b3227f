"""Models of scikit-learn and others behind the one API."""

from __future__ import annotations

import json
import operator
import pickle
import re
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
from server_process import ServerProcess, predict_request
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LinearRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from tensorflow_serving.apis import predict_pb2

from airflow_hops.core.errors import BadInput
from airflow_hops.core.serving_api import protocol, tensors
from airflow_hops.core.serving_api.protocol import Method
from airflow_hops.extensions.frameworks import scikit_learn
from airflow_hops.extensions.frameworks.serving.skops_files import load_estimator
from airflow_hops.ml.model_server.version_folders import LocalFolders, check_model
from airflow_hops.serving.errors import ServingError
from airflow_hops.serving.flag_parser import parse_flags
from airflow_hops.serving.models.formats import ModelOptions, open_model, version_opener
from airflow_hops.serving.models.model_signature import MATRIX_INPUT, EstimatorInputs
from airflow_hops.serving.models.servable import Call

pytestmark = pytest.mark.xdist_group("formats")


@pytest.mark.parametrize("model", ["delays", "logged"])
def test_an_estimator_takes_columns_and_gives_predictions_probabilities_and_classes(
    formats_server: ServerProcess, model: str
) -> None:
    """``logged`` is a folder as MLflow logs it: its signature is the registered model's."""
    rows = [{"carrier": "AA", "distance": 3.0, "hour": 3}, {"carrier": "ZZ", "distance": 19.0, "hour": 19}]
    predictions = formats_server.predict(model, {"instances": rows})["predictions"]
    assert [row["predictions"] for row in predictions] == ["on time", "late"]
    assert [row["classes"] for row in predictions] == [["late", "on time"]] * 2
    assert [row["probabilities"][0] > 0.5 for row in predictions] == [False, True]
    columns = {"carrier": ["AA"], "distance": [[3.0]], "hour": [3]}
    outputs = formats_server.predict(model, {"inputs": columns})["outputs"]
    assert outputs["probabilities"] == [predictions[0]["probabilities"]]


def test_an_estimator_of_a_matrix_takes_rows(formats_server: ServerProcess) -> None:
    assert formats_server.predict("matrix", {"instances": [[1.0, 2.0], [3, 4]]})["predictions"] == pytest.approx([3, 7])
    targets = formats_server.predict("targets", {"instances": [[1.0, 1.0], [19.0, 19.0]]})["predictions"]
    assert [row[0] for row in targets] == ["on time", "late"]
    assert {row[1] for row in targets} <= {"AA", "UA"}
    assert formats_server.predict("negated", {"instances": [[1.0, 2.0]]})["predictions"] == pytest.approx([3])


def test_an_estimator_may_work_in_place() -> None:
    """As ``StandardScaler(copy=False)`` does: what comes as the bytes of a message is not what it gets."""
    message = np.arange(4.0).tobytes()
    values = {MATRIX_INPUT: np.frombuffer(message).reshape(2, 2)}
    matrix = EstimatorInputs({MATRIX_INPUT: tensors.BY_NAME["double"]}, 2).arrange(values)
    assert matrix.tolist() == [[0, 1], [2, 3]]
    matrix -= 1
    assert message == np.arange(4.0).tobytes()


def test_an_estimator_classifies_and_regresses_examples(formats_server: ServerProcess) -> None:
    rows = [{"carrier": "AA", "distance": 3.0, "hour": 3}, {"carrier": "ZZ", "distance": 19, "hour": 19}]
    predictions = formats_server.predict("delays", {"instances": rows})["predictions"]
    expected = [list(zip(row["classes"], row["probabilities"], strict=True)) for row in predictions]
    _, body = formats_server.call("/v1/models/delays:classify", {"examples": rows})
    for result, classes in zip(body["results"], expected, strict=True):
        assert [label for label, _ in result] == ["late", "on time"]
        assert [score for _, score in result] == pytest.approx([score for _, score in classes], abs=1e-6)
    # What all examples share comes once; others of their features are nobody's business.
    shared = {"context": {"carrier": "AA", "hour": 3, "tail": "N1"}, "examples": [{"distance": 3.0}]}
    _, again = formats_server.call("/v1/models/delays:classify", {"signature_name": "classify", **shared})
    assert again["results"] == body["results"][:1]
    texts = [{"carrier": text, "hour": 3, "distance": 3.0} for text in (None, "")]
    _, body = formats_server.call("/v1/models/delays:classify", {"signature_name": "classify", "examples": texts})
    assert body["results"][0] == body["results"][1]
    examples = [{"inputs": [1.0, 2.0]}, {"inputs": [3.0, 4.0]}]
    _, body = formats_server.call("/v1/models/matrix:regress", {"examples": examples})
    assert body["results"] == pytest.approx([3, 7])
    metadata = formats_server.call("/v1/models/delays/metadata")[1]["metadata"]["signature_def"]["signature_def"]
    assert metadata["classify"]["method_name"] == "tensorflow/serving/classify"
    assert metadata["classify"]["inputs"].keys() == {"inputs"}
    assert metadata["classify"]["outputs"].keys() == {"classes", "scores"}


@pytest.mark.parametrize(
    ("path", "example", "message"),
    [
        ("delays:classify", {"carrier": "AA", "distance": 1.0}, "example 0: feature 'hour' has 0 values; expected 1"),
        (
            "delays:classify",
            {"carrier": "AA", "distance": 1.0, "hour": 1.5},
            "example 0: feature 'hour' is a float_list; expected int64_list",
        ),
        (
            "delays:classify",
            {"carrier": ["AA", "UA"], "distance": 1.0, "hour": 1},
            "example 0: feature 'carrier' has 2 values; expected 1",
        ),
        ("delays:classify", {"carrier": "AA", "hour": 1}, "contains NaN"),
        ("delays:regress", {"carrier": "AA", "distance": 1.0, "hour": 1}, "found with the name: regress"),
        ("matrix:regress", {"inputs": [1.0]}, "example 0: feature 'inputs' has 1 values; expected 2"),
        ("matrix:classify", {"inputs": [1.0, 2.0]}, "found with the name: classify"),
    ],
)
def test_wrong_examples_of_an_estimator_are_reported(
    formats_server: ServerProcess, path: str, example: object, message: str
) -> None:
    status, result = formats_server.error(f"/v1/models/{path}", {"examples": [example]})
    assert status == 400
    assert message in result


class Reading:
    """Refers to a function that notes when an estimator begins and ends to be read."""

    events: ClassVar[list[str]] = []
    both = threading.Event()

    def __reduce__(self) -> tuple[object, tuple[()]]:
        return read_slowly, ()


def read_slowly() -> None:
    Reading.events.append("begin")
    if len(Reading.events) > 1:
        Reading.both.set()
    Reading.both.wait(0.5)  # for another that is read meanwhile
    Reading.events.append("end")


def test_estimators_are_read_one_at_a_time(format_models: Path, tmp_path: Path) -> None:
    """Modules that import each other are half there for a thread that imports another of them."""
    options, start = ModelOptions(allow_pickled=True), threading.Barrier(2)

    def read(name: str) -> None:
        version = shutil.copytree(format_models / "pickled" / "1", tmp_path / name)
        (version / "model.pkl").write_bytes(pickle.dumps(Reading()))
        start.wait()
        with pytest.raises(ServingError, match="NoneType has no method predict"):
            open_model(name, 1, version, options)

    Reading.events.clear()
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(read, ("first", "second")))
    assert Reading.events == ["begin", "end"] * 2


def test_flags_change_trusted_types_and_answer_format(format_models: Path, tmp_path: Path) -> None:
    flags = ("allow_pickled_models", "enable_signature_method_name_check", "enable_serialization_as_tensor_content")
    open_version = version_opener(parse_flags(["--model_base_path=/m", *(f"--{flag}" for flag in flags)])[0])
    opened = {name: open_version(name, 1, format_models / name / "1") for name in ("pickled", "native", "types")}
    row = {"carrier": np.array([b"AA"], object), "distance": np.array([3.0]), "hour": np.array([3])}
    assert opened["pickled"].predict(row)["predictions"].tolist() == [b"on time"]

    for name, content, message in (
        ("negated", None, "model.skops holds types that skops does not trust: _operator.neg; name those"),
        (
            "wrong_type",
            json.dumps({"columns": [{"name": "a", "type": "date"}]}),
            "signature.json: type 'date' is none of float, double",
        ),
        ("torn", "{", "torn/signature.json: Expecting property name"),
    ):
        version = shutil.copytree(format_models / ("matrix" if content else name) / "1", tmp_path / name)
        if content:
            (version / "signature.json").write_text(content)
        with pytest.raises(ServingError, match=re.escape(message)):
            open_version(name, 1, version)

    for method, kind, request, signature in (
        (Method.CLASSIFY, "classification", protocol.ClassificationRequest(), ""),
        (Method.REGRESS, "regression", protocol.RegressionRequest(), "value"),
    ):
        request.model_spec.name, request.model_spec.signature_name = "native", signature
        request.input.example_list.examples.add().features.feature["x"].float_list.value.append(1.5)
        verb = method.label.lower()
        with pytest.raises(ServingError) as raised:
            opened["native"].answer(Call(method, request.SerializeToString()))
        assert raised.value.message == (
            f"Expected {kind} signature method_name to be tensorflow/serving/{verb}. Was: tensorflow/serving/predict"
        )
    for name, values, size in (("float64", [0.5, 2.0], 16), ("string", [b"a", b"b" * 300], 304), ("bool", [True], 1)):
        request = predict_request("types", name)
        request.inputs["x"].ParseFromString(tf.make_tensor_proto(values, tf.as_dtype(name)).SerializeToString())
        reply = opened["types"].answer(Call(Method.PREDICT, request.SerializeToString()))
        output = predict_pb2.PredictResponse.FromString(reply.message).outputs["y"]
        assert len(output.tensor_content) == size
        assert tf.io.parse_tensor(output.SerializeToString(), tf.as_dtype(name)).numpy().tolist() == values
    for servable in opened.values():
        servable.close()


def test_version_folder_is_created_atomically_and_can_be_published(tmp_path: Path) -> None:
    x = np.arange(8.0).reshape(4, 2)
    fitted = LinearRegression().fit(x, x.sum(axis=1))
    model = scikit_learn.save(fitted, tmp_path / "model", x)
    check_model(model)
    with pytest.raises(BadInput, match="format scikit-learn, and the connection's server is a tensorflow_model_server"):
        check_model(model, served_by="tensorflow_model_server")
    served = LocalFolders(tmp_path / "served")
    served.publish(tmp_path / "model", "m", 3, "fingerprint")
    assert served.has("m", 3)

    good, bad = tmp_path / "good" / "1", tmp_path / "bad" / "1"
    scikit_learn.save(fitted, good, x)
    with pytest.raises(FileExistsError, match="good/1: exists already; a version is written once"):
        scikit_learn.save(fitted, good, x)
    imputed = make_pipeline(SimpleImputer(), LinearRegression()).fit(x, x.sum(axis=1))  # it keeps a dtype
    scikit_learn.save(imputed, tmp_path / "imputed", x)
    loaded = load_estimator(tmp_path / "imputed" / "model.skops")
    np.testing.assert_allclose(loaded.predict(x), x.sum(axis=1))
    when = pd.DataFrame({"when": pd.to_datetime(["2026-01-01"])})
    negated = make_pipeline(FunctionTransformer(operator.neg), fitted)
    for estimator, sample, message in (
        (fitted, x[:, :1], "X has 1 features, but LinearRegression is expecting 2 features"),
        (fitted, x[0], "the sample has shape [2]; expected a data frame, or a matrix [rows, width]"),
        (StandardScaler().fit(x), x, "StandardScaler has no method predict"),
        (fitted, when, "column 'when' of the sample: dtype datetime64[ns] has no TensorFlow type"),
        (negated, x, "Pipeline holds types that skops does not trust: _operator.neg; name them"),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            scikit_learn.save(estimator, bad, sample)
    result = sorted(str(result.relative_to(tmp_path)) for result in tmp_path.rglob("*") if result.is_file())
    assert [name for name in result if not name.startswith("served")] == [
        "good/1/model.skops",
        "good/1/signature.json",
        "imputed/model.skops",
        "imputed/signature.json",
        "model/model.skops",
        "model/signature.json",
    ]
