"""The program: flags, ports, start and stop."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import sys
import tempfile
import time
import urllib.error
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
import tensorflow as tf
from server_process import ServerProcess, Start, predict_request, write_models
from waiting import wait_for

from airflow_hops.core.serving_api import protocol
from airflow_hops.core.serving_api.client import ModelServerClient
from airflow_hops.serving.__main__ import main
from airflow_hops.serving.errors import StartError
from airflow_hops.serving.flag_parser import parse_flags
from airflow_hops.serving.server import BundledServer


def test_port_in_use_is_one_line_with_flag_and_port(
    start_server: Start, shared_server: ServerProcess, tmp_path: Path
) -> None:
    flags = {"model_config_file": write_models(tmp_path), "wait": False}
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for flag, advice in (("port", "--port=0 takes a free one"), ("rest_api_port", "--rest_api_port=auto")):
            server = start_server(**{flag: port}, **flags)
            assert server.process.wait() == 1
            (line,) = [line for line in server.log().splitlines() if "taken" in line]
            assert line.startswith(f"airflow_hops.serving: --{flag}={port}: port {port} of 127.0.0.1 is taken")
            assert advice in line
            assert "Traceback" not in server.log()
    port = int(shared_server.address.rpartition(":")[2])
    another = start_server(port=port, **flags)
    assert another.process.wait() == 1
    assert f"--port={port}: port {port} of 127.0.0.1 is taken" in another.log(), "a model server shares none"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("", "expected one of --model_base_path, --model_config_file"),
        ("--model_base_path=relative", "Expected model default to have an absolute path or URI"),
        ("--model_base_path=/m --port=http", "argument --port: value is 'http'; expected a port from 0 to 65535"),
        ("--model_base_path=/m --port=7 --rest_api_port=7", "--rest_api_port cannot be same as --port."),
        ("--model_base_path=/m --grpc_channel_arguments=a", "value is 'a'; expected name=value"),
        ("--model_base_path=/m --port=70000", "value is '70000'; expected a port from 0 to 65535"),
        ("--model_base_path=/m --file_system_poll_wait_seconds=nan", "value is 'nan'; expected seconds"),
        ("--model_base_path=/m --capture_mode=some", "--capture_mode: invalid choice: 'some'"),
        ("--model_base_path=/m --capture_sampling_percent=101", "expected a percent from 0 to 100"),
        (
            "--model_base_path=/m --captur_base_path=/c",
            "argument: --captur_base_path=/c; did you mean --capture_base_path",
        ),
        ("--model_base_path=/m --no_such_flag", "unknown argument: --no_such_flag"),
        ("--model_base_path=/m stray", "unknown argument: stray"),
        ("--model_base_path=/m --prediction_token_file=/t", "--prediction_token_file is set without --control"),
        ("--model_base_path=/m --feedback_token_file=/t", "--feedback_token_file is set without --control"),
    ],
)
def test_wrong_flag_is_reported_in_one_line(flags: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        parse_flags(flags.split())
    (line,) = capsys.readouterr().err.splitlines()
    assert (end.value.code, message in line) == (2, True), line


UNPARSED = "Invalid protobuf file: '{path}': Error parsing text-format tensorflow.serving."
NO_VERSION = "{path}: models.flights names version 'one'; expected a positive integer"


@pytest.mark.parametrize(
    ("flag", "text", "message"),
    [
        ("model_config_file", None, "{path}: no such file"),
        ("model_config_file", "model_config_list { config { name: 7 } }", f"{UNPARSED}ModelServerConfig: 1:36"),
        ("monitoring_config_file", "prometheus_config { enable: maybe }", f"{UNPARSED}MonitoringConfig: 1:29"),
        (
            "monitoring_config_file",
            'prometheus_config { enable: true path: "m" }',
            "is 'm'; expected one that begins",
        ),
        ("ssl_config_file", 'server_key: "no key"', "{path}: field 'server_key' is not in PEM"),
        ("ssl_config_file", 'server_keys: ""', 'has no field named "server_keys"'),
        ("traffic_config_file", '{"models": {"flights": {"one": 100}}}', NO_VERSION),
        ("control_token_file", "two words", "--control_token_file={path}: expected a token on each line"),
    ],
)
def test_missing_or_invalid_file_is_reported_in_one_line(
    tmp_path: Path, flag: str, text: str | None, message: str
) -> None:
    path = tmp_path / "file"
    if text is not None:
        path.write_text(text)
    flags, _ = parse_flags(["--model_base_path=/m", "--port=0", f"--{flag}={path}"])
    with pytest.raises(StartError) as error:
        BundledServer(flags)
    (line,) = str(error.value).splitlines()
    assert message.format(path=path) in line


# Every flag of TensorFlow Serving's 2.16 that its specification names.
TENSORFLOW_SERVING_FLAGS = """
    allow_version_labels_for_unavailable_models batching_parameters_file enable_batching
    enable_grpc_healthcheck_service enable_model_warmup enable_per_model_batching_parameters enable_profiler
    enable_serialization_as_tensor_content enable_signature_method_name_check file_system_poll_wait_seconds
    flush_filesystem_caches grpc_channel_arguments grpc_max_threads grpc_socket_path load_retry_interval_micros
    max_num_load_retries mixed_precision model_base_path model_config_file model_config_file_poll_wait_seconds
    model_name monitoring_config_file num_load_threads num_request_iterations_for_warmup
    num_tflite_interpreters_per_pool num_tflite_pools num_unload_threads per_process_gpu_memory_fraction
    platform_config_file port prefer_tflite_model remove_unused_fields_from_bundle_metagraph
    rest_api_enable_cors_support rest_api_num_threads rest_api_port rest_api_timeout_in_ms saved_model_tags
    skip_initialize_tpu ssl_config_file tensorflow_inter_op_parallelism tensorflow_intra_op_parallelism
    tensorflow_session_config_file tensorflow_session_parallelism thread_pool_factory_config_file use_alts_credentials
    use_tflite_model version xla_cpu_compilation_enabled
"""


def test_version_and_help_are_printed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit) as end:
        parse_flags(["--help"])
    usage = capsys.readouterr().out
    assert end.value.code == 0
    assert "--traffic_config_file" in usage
    not_shown = [name for name in TENSORFLOW_SERVING_FLAGS.split() if f"  --{name}" not in usage]
    # One that is not in the help is either not needed or, unless it is false, refused.
    monkeypatch.setattr(sys, "argv", ["serving", *(f"--{name}=false" for name in not_shown), "--version"])
    assert main() == 0
    printed = capsys.readouterr()
    assert "TensorFlow Library: 2." in printed.out
    noted = {line.partition(" has no effect here: ")[0].removeprefix("flag --") for line in printed.err.splitlines()}
    assert {"enable_grpc_healthcheck_service", "skip_initialize_tpu"} < noted < {*not_shown}
    for name in {*not_shown} - noted:
        with pytest.raises(SystemExit):
            parse_flags(["--model_base_path=/m", f"--{name}=1"])
        assert f": --{name} is not supported: " in capsys.readouterr().err


def test_flags_of_tensorflow_serving_are_taken_or_refused(start_server: Start, tmp_path: Path) -> None:
    config, path = tmp_path / "models.config", small_socket_path()
    config.write_text("")
    flags = {"grpc_socket_path": path, "enable_grpc_healthcheck_service": "true", "prefer_tflite_model": "false"}
    server = start_server(model_config_file=config, **flags)
    assert "flag --enable_grpc_healthcheck_service has no effect here: the health service is always" in server.log()
    assert server.call("/readyz") == (200, {"ready": True, "models": {}, "unavailable": []})
    for address in (server.address, f"unix:{path}"):
        with grpc.insecure_channel(address) as channel:
            check = channel.unary_unary(f"/{protocol.HEALTH_SERVICE}/Check")
            assert protocol.HealthCheckResponse.FromString(check(b"")).status == 1
    # A server that is killed leaves its socket to the next one.
    server.process.kill()
    server.process.wait()
    assert path.exists()
    again = start_server(model_config_file=config, grpc_socket_path=path)
    with grpc.insecure_channel(f"unix:{path}") as channel:
        assert channel.unary_unary(f"/{protocol.HEALTH_SERVICE}/Check")(b"")
    assert again.terminate() == 0


def small_socket_path() -> Path:
    """A path of a socket, which pytest's folders would make too long."""
    return Path(tempfile.mkdtemp()) / "grpc.sock"


def first_answer(server: ServerProcess, ask: Callable[[], Any]) -> Any:
    """Returns the answer on the first connection that is accepted."""
    while True:
        assert server.process.poll() is None, server.log()
        try:
            return ask()
        except (ConnectionRefusedError, urllib.error.URLError):
            time.sleep(0.001)


def slow_model(saved_models: Path, folder: Path, rounds: int) -> Path:
    """A copy of a model, with a request to warm up with that takes milliseconds for each round."""
    version = shutil.copytree(saved_models / "vectors" / "7", folder / "7")
    request = predict_request(folder.name, "slow", rounds=rounds)
    path = version / "assets.extra" / "tf_serving_warmup_requests"
    path.parent.mkdir(exist_ok=True)
    log = protocol.PredictionLog()
    log.predict_log.request = request.SerializeToString()
    with tf.io.TFRecordWriter(str(path)) as writer:
        writer.write(log.SerializeToString())
    return folder


@pytest.mark.parametrize("mode", [{}, {"workers": 2}], ids=["one process", "workers"])
def test_ports_open_once_models_answer(
    start_server: Start, saved_models: Path, tmp_path: Path, mode: dict[str, int]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        port, rest_port = one.getsockname()[1], other.getsockname()[1]
    slow_model(saved_models, tmp_path / "vectors", 600)
    (tmp_path / "broken" / "1").mkdir(parents=True)
    (tmp_path / "broken" / "1" / "saved_model.pb").write_bytes(b"no model")
    vectors = tmp_path / "vectors", 'version_labels { key: "stable" value: 7 }'
    config = write_models(tmp_path, broken=tmp_path / "broken", vectors=vectors)
    server = start_server(wait=False, port=port, rest_api_port=rest_port, model_config_file=config, **mode)
    server.ports = {"port": port, "rest_api_port": rest_port}
    wait_for(lambda: "model broken version 1 did not load" in server.log(), server.log)
    for each in (port, rest_port):  # the other model is still loading
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", each), timeout=60).close()

    def predict_by_grpc() -> Any:
        socket.create_connection(("127.0.0.1", port), timeout=60).close()
        with ModelServerClient(server.address) as client:
            return client.predict("vectors", {"x": [[1.0, 2.0, 3.0]]}).version

    body = {"inputs": [[1.0, 2.0, 3.0]]}
    with ThreadPoolExecutor(3) as executor:
        asks = (
            lambda: server.call("/v1/models/vectors/labels/stable:predict", body),
            predict_by_grpc,
            lambda: server.call("/readyz"),
        )
        asked = [executor.submit(first_answer, server, ask) for ask in asks]
        answers = [answer.result() for answer in asked]
    ready = {"ready": True, "models": {"vectors": [7]}, "unavailable": ["broken"]}
    assert answers == [(200, {"outputs": [[2.0, 4.0, 6.0]]}), 7, (200, ready)]
    status, message = server.error("/v1/models/broken:predict", body)
    assert (status, message) == (503, "Servable is not loaded yet: Latest(broken)")  # it is tried again
    assert server.headers["Retry-After"] == "1"


@pytest.mark.parametrize("taken", ["port", "rest_api_port"])
def test_port_taken_during_loading_is_reported_in_one_line(
    start_server: Start, saved_models: Path, tmp_path: Path, taken: str
) -> None:
    path = slow_model(saved_models, tmp_path / "vectors", 600)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server = start_server(wait=False, model_base_path=path, **{taken: port})
    wait_for(lambda: is_held(port), server.log)
    with socket.create_server(("127.0.0.1", port)):
        assert server.process.wait() == 1
    assert f"airflow_hops.serving: --{taken}={port}: port {port} of 127.0.0.1 is taken by another" in server.log()


def is_held(port: int) -> bool:
    """Whether a socket is bound to a port, listening or not."""
    with socket.socket() as unshared, contextlib.suppress(OSError):
        unshared.bind(("127.0.0.1", port))
        return False
    return True


def test_endless_load_delays_the_ports_for_a_limited_time(
    start_server: Start, saved_models: Path, tmp_path: Path
) -> None:
    slow_model(saved_models, tmp_path / "slow", 10**12)
    config = write_models(tmp_path, slow=tmp_path / "slow", vectors=saved_models / "vectors")
    server = start_server(model_config_file=config, first_load_timeout_seconds=2)
    wait_for(lambda: server.call("/v1/models/vectors:predict", {"inputs": [[1.0, 2.0, 3.0]]})[0] == 200, server.log)
    assert server.error("/v1/models/slow:predict", {"inputs": 1})[0] == 503
    assert "still loading after --first_load_timeout_seconds=2: slow version 7" in server.log()


def test_ready_file_has_pid_and_ports_until_the_server_ends(
    runtime_python: Path, saved_models: Path, tmp_path: Path
) -> None:
    """Server and workers are programs, as for users, and no forks."""
    flags = {"model_name": "vectors", "model_base_path": saved_models / "vectors", "rest_api_port": 0, "workers": 2}
    server = ServerProcess(runtime_python, tmp_path / "server", flags).start().wait_until_ready()
    ready = json.loads(server.ready_file.read_text())
    assert ready["pid"] == server.process.pid
    assert ready["grpc_port"] > 0
    assert ready["rest_api_port"] == 0
    assert server.terminate() == 0
    assert not server.ready_file.exists()
