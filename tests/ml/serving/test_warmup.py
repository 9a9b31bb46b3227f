"""Warm-up: a version answers the requests exported with it first, and is not served where one fails."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from server_process import Publish, Start, write_models
from tensorflow_serving.apis import prediction_log_pb2

from airflow_hops.serving.flag_parser import parse_flags
from airflow_hops.serving.models.formats import ModelOptions, open_model
from airflow_hops.serving.models.local import LocalServable


def write(folder: Path, *logs: Any) -> Path:
    """Writes warm-up requests with TensorFlow's own writer, and TensorFlow Serving's own messages."""
    path = folder.joinpath("1", "assets.extra", "tf_serving_warmup_requests")
    path.parent.mkdir()
    with tf.io.TFRecordWriter(str(path)) as writer:
        for log in logs:
            writer.write(log.SerializeToString())
    return path


def predict(alias: str = "x") -> Any:
    log = prediction_log_pb2.PredictionLog()
    log.predict_log.request.model_spec.name = "any name"
    log.predict_log.request.inputs[alias].CopyFrom(tf.make_tensor_proto([[1.0, 2.0, 3.0]], tf.float32))
    return log


def of_examples(field: str, signature: str) -> Any:
    log = prediction_log_pb2.PredictionLog()
    request = getattr(log, field).request
    request.input.example_list.examples.add().features.feature["x"].float_list.value.append(1.0)
    request.model_spec.signature_name = signature
    return log


def multi_inference() -> Any:
    log = prediction_log_pb2.PredictionLog()
    request = log.multi_inference_log.request
    for signature, method in (("serving_default", "classify"), ("value", "regress")):
        task = request.tasks.add(method_name=f"tensorflow/serving/{method}")
        task.model_spec.name = "m"
        task.model_spec.signature_name = signature
    request.input.example_list.examples.add().features.feature["x"].float_list.value.append(1.0)
    return log


def test_version_failing_warm_up_is_not_served(
    start_server: Start, publish: Publish, format_models: Path, tmp_path: Path
) -> None:
    for name in ("good", "misfit", "session", "many", "garbage", "cut", "no_log"):
        publish("vectors", 7, tmp_path / name, as_version=1)
    shutil.copytree(format_models / "examples", tmp_path / "examples")
    session_run, empty = prediction_log_pb2.PredictionLog(), prediction_log_pb2.PredictionLog()
    session_run.session_run_log.request.fetch.append("y")
    write(tmp_path / "good", predict(), empty, predict())
    classify, regress = of_examples("classify_log", "serving_default"), of_examples("regress_log", "value")
    write(tmp_path / "examples", classify, regress, multi_inference())
    write(tmp_path / "misfit", predict(), predict("z"))
    write(tmp_path / "session", session_run)
    write(tmp_path / "many", *[predict()] * 1001)
    write(tmp_path / "garbage").write_bytes(b"this is no TFRecord file at all")
    cut = write(tmp_path / "cut", predict(), predict())
    cut.write_bytes(cut.read_bytes()[:-3])
    with tf.io.TFRecordWriter(str(write(tmp_path / "no_log"))) as writer:
        writer.write(b"\xff\xff")
    names = ("good", "examples", "misfit", "session", "many", "garbage", "cut", "no_log")
    config = write_models(tmp_path, **{name: tmp_path / name for name in names})
    server = start_server(model_config_file=config, max_num_load_retries=0)
    results = {name: server.call(f"/v1/models/{name}")[1]["model_version_status"][0] for name in names}
    assert {name: status["state"] for name, status in results.items() if status["state"] != "END"} == {
        "good": "AVAILABLE",
        "examples": "AVAILABLE",
    }
    log = server.log()
    assert "model good version 1 warmed up with 3 records" in log
    assert "model examples version 1 warmed up with 3 records" in log
    errors = {
        name: tuple(status["status"][key] for key in ("error_code", "error_message"))
        for name, status in results.items()
    }
    file = "assets.extra/tf_serving_warmup_requests"
    assert errors["misfit"][0] == "INVALID_ARGUMENT"
    assert errors["misfit"][1].startswith("Signature input alias: x(feed name: ")
    assert errors["misfit"][1].endswith(f"(warm-up record 2 of {tmp_path}/misfit/1/{file})")
    assert errors["session"][0] == "UNIMPLEMENTED"
    assert errors["session"][1].startswith("Unsupported log_type for warmup: 5")
    assert errors["many"] == (
        "INVALID_ARGUMENT",
        f"Number of warmup records exceeds the maximum (1000) at {tmp_path}/many/1/{file}",
    )
    assert errors["garbage"][0] == errors["cut"][0] == "DATA_LOSS"
    assert "corrupted record at 0" in errors["garbage"][1]
    assert errors["garbage"][1].endswith("Please verify your warmup data is in TFRecord format.")
    assert "truncated record at" in errors["cut"][1]
    assert errors["no_log"][1].startswith("Failed to parse warmup record")


def test_warm_up_iterations_are_configurable(publish: Publish, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, logs in (("misfit", [predict("z")]), ("good", [predict(), predict()])):
        publish("vectors", 7, tmp_path / name, as_version=1)
        write(tmp_path / name, *logs)
    answered: list[str] = []
    answer = LocalServable.answer

    def counted(servable: LocalServable, call: Any) -> Any:
        answered.append(servable.model)
        return answer(servable, call)

    monkeypatch.setattr(LocalServable, "answer", counted)

    def open_with(model: str, *flags: str) -> int:
        answered.clear()
        options = ModelOptions.of(parse_flags(["--model_base_path=/models", *flags])[0])
        open_model(model, 1, tmp_path / model / "1", options).close()
        return len(answered)

    assert open_with("misfit", "--enable_model_warmup=false") == 0
    assert open_with("good") == 2
    assert open_with("good", "--num_request_iterations_for_warmup=3") == 6


def test_version_without_warm_up_runs_once_before_publishing(saved_models: Path) -> None:
    opened = {}
    for iterations in (1, 0):
        for model, version in (("flights", 1), ("vectors", 7)):
            options = ModelOptions(warmup_iterations=iterations)
            servable = open_model(model, version, saved_models / model / str(version), options)
            opened[f"{model} {iterations}"] = sorted({key[0] for key in servable._callables})
    assert opened["flights 1"] == ["serving_default"]
    assert "slow" in opened["vectors 1"], "a signature of a scalar, too"
    assert opened["flights 0"] == opened["vectors 0"] == []
