"""The program: flags, ports, start and stop."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import socket
import sys
import threading
import urllib.error
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from server_process import ServerProcess
from waiting import wait_for

from airflow_hops.serving.__main__ import main
from airflow_hops.serving.flags import parse_flags
from airflow_hops.serving_api.answers import ModelServerError
from airflow_hops.serving_api.client import ModelServerClient


def test_taken_port_is_one_line_that_names_flag_and_port(
    start_server: Callable[..., ServerProcess], shared_server: ServerProcess
) -> None:
    flags = {"upstream": "127.0.0.1:1", "wait": False}
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for flag, advice in (("port", "--port=0 takes a free one"), ("rest_api_port", "--rest_api_port=auto")):
            server = start_server(**{flag: port}, **flags)
            assert server.process.wait(60) == 1
            (line,) = [line for line in server.log().splitlines() if "taken" in line]
            assert line.startswith(f"airflow_hops.serving: --{flag}={port}: port {port} of 127.0.0.1 is taken")
            assert advice in line
            assert "Traceback" not in server.log()
    port = int(shared_server.address.rpartition(":")[2])
    another = start_server(port=port, **flags)
    assert another.process.wait(60) == 1
    assert f"--port={port}: port {port} of 127.0.0.1 is taken" in another.log(), "a model server shares none"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--model_base_path, --model_config_file and --upstream are all empty"),
        (["--model_base_path=relative"], "Expected model default to have an absolute path or URI"),
        (["--port=http", "--model_base_path=/m"], "argument --port: value is 'http'; expected a port from 0 to 65535"),
        (["--port=7", "--rest_api_port=7", "--model_base_path=/m"], "--rest_api_port cannot be same as --port."),
        (["--grpc_channel_arguments=a", "--model_base_path=/m"], "value is 'a'; expected name=value"),
        (
            ["--batching_parameters_file=/b", "--model_base_path=/m"],
            "server_options.batching_parameters_file is set without setting server_options.enable_batching to true.",
        ),
        (["--port=70000", "--model_base_path=/m"], "value is '70000'; expected a port from 0 to 65535"),
        (["--file_system_poll_wait_seconds=nan", "--model_base_path=/m"], "value is 'nan'; expected seconds"),
        (["--capture_mode=some", "--model_base_path=/m"], "--capture_mode: invalid choice: 'some'"),
        (["--enable_profiler", "--model_base_path=/m"], "--enable_profiler is set without --profiler_log_dir"),
        (["--capture_sampling_percent=101", "--model_base_path=/m"], "expected a percent from 0 to 100"),
    ],
)
def test_wrong_flag_is_one_line(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        parse_flags(arguments)
    said = capsys.readouterr().err
    assert end.value.code == 2
    assert message in said
    assert len(said.splitlines()) == 1


def test_config_file_that_is_missing_or_wrong_is_one_line(
    start_server: Callable[..., ServerProcess], tmp_path: Path
) -> None:
    wrong = tmp_path / "wrong.config"
    wrong.write_text("model_config_list { config { name: 7 } }")
    missing = start_server(model_config_file=f"{tmp_path}/none.config", wait=False)
    unparsed = start_server(model_config_file=wrong, wait=False)
    assert (missing.process.wait(60), unparsed.process.wait(60)) == (1, 1)
    assert missing.log().splitlines() == [f"airflow_hops.serving: {tmp_path}/none.config: no such file"]
    assert (
        f"Invalid protobuf file: '{wrong}': Error parsing text-format tensorflow.serving.ModelServerConfig: 1:36"
        in unparsed.log()
    )


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


def test_version_and_help(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit) as end:
        parse_flags(["--help"])
    usage = capsys.readouterr().out
    assert end.value.code == 0
    assert "--traffic_config_file" in usage
    not_shown = [name for name in TENSORFLOW_SERVING_FLAGS.split() if f"  --{name}" not in usage]
    # One that has no effect here is not in the help, and says why when it is given.
    monkeypatch.setattr(sys, "argv", ["serving", *(f"--{name}=1" for name in not_shown), "--version"])
    assert main() == 0
    said = capsys.readouterr()
    assert "TensorFlow Library: 2." in said.out
    lines = said.err.splitlines()
    assert [line.partition(" has no effect here: ")[0] for line in lines] == [f"flag --{name}" for name in not_shown]


def test_unknown_flag_is_printed_and_ignored(start_server: Callable[..., ServerProcess], saved_models: Path) -> None:
    server = start_server(
        model_name="vectors", model_base_path=saved_models / "vectors", no_such_flag=1, num_tflite_pools=4
    )
    assert "unknown argument: --no_such_flag=1" in server.log()
    assert "flag --num_tflite_pools has no effect here: each request thread has its own interpreter" in server.log()
    assert server.versions("vectors") == {7: "AVAILABLE"}


def test_empty_config_serves_nothing_and_is_ready(start_server: Callable[..., ServerProcess], tmp_path: Path) -> None:
    config = tmp_path / "models.config"
    config.write_text("")
    server = start_server(model_config_file=config)
    assert server.call("/readyz") == (200, {"ready": True, "models": {}, "unavailable": []})
    assert server.terminate() == 0


def listener_at(path: Path) -> socket.socket:
    """Takes the place of what is at the path, as a server does."""
    listener = socket.socket(socket.AF_UNIX)
    bound = path.with_suffix(".new")
    listener.bind(str(bound))
    listener.listen()
    bound.rename(path)
    return listener


def test_server_that_starts_is_unavailable_until_its_models_are_there_and_then_takes_the_socket_over(
    start_server: Callable[..., ServerProcess], saved_models: Path, tmp_path: Path
) -> None:
    path, config = tmp_path / "grpc.sock", tmp_path / "models.config"
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        port, rest_port = one.getsockname()[1], other.getsockname()[1]
    written = shutil.copytree(saved_models / "flights" / "3", tmp_path / "flights" / "3") / "saved_model.pb"
    labels = 'version_labels { key: "stable" value: 3 }'
    config.write_text(f'model_config_list {{ config {{ name: "flights" base_path: "{tmp_path}/flights" {labels} }} }}')
    before, connection = listener_at(path), socket.socket(socket.AF_UNIX)
    connection.connect(str(path))
    accepted = before.accept()[0]
    flags = {"port": port, "rest_api_port": rest_port, "grpc_socket_path": path, "model_config_file": config}
    server = start_server(wait=False, **flags)
    server.ports = {"port": port, "rest_api_port": rest_port}
    models = ("flights", "flights/labels/stable", "flights/versions/3", "trains")
    answers: dict[str, set[int]] = {}
    refusals: list[str] = []
    while not server.ready_file.exists():
        assert server.process.poll() is None, server.log()
        if not (any("UNAVAILABLE" in each for each in refusals) and 503 in answers.get("/readyz", ())):
            written.touch()  # still being written, until both APIs have told so
        with ModelServerClient(server.address) as client:  # one that was refused would wait before it connects again
            try:
                client.metadata("flights")
            except ModelServerError as error:
                refusals.append(str(error))
        with contextlib.suppress(urllib.error.URLError):
            for model in models:
                status = server.call(f"/v1/models/{model}/metadata")[0]
                answers.setdefault(model, set()).add(status)
                assert (server.headers["Retry-After"] == "1") == (status == 503)
            answers.setdefault("/readyz", set()).add(server.call("/readyz")[0])
    server.wait_until_ready()
    for model in models[:3]:
        assert answers[model] - {200} == {503}
        assert server.call(f"/v1/models/{model}/metadata")[0] == 200
    assert answers["trains"] == {404}
    assert 503 in answers["/readyz"]
    assert any("UNAVAILABLE" in each and "Servable is not loaded yet: Latest(flights)" in each for each in refusals)
    with ModelServerClient(f"unix:{path}") as client:
        assert client.status("flights")
    accepted.send(b"still here")
    assert connection.recv(100) == b"still here"
    after = listener_at(path)
    assert server.terminate() == 0
    assert path.is_socket()
    for each in (before, connection, accepted, after):
        each.close()


def test_ready_file_tells_pid_and_ports_and_goes_with_the_server(
    runtime_python: Path, saved_models: Path, tmp_path: Path
) -> None:
    """The one that is started from nothing, as users do."""
    flags = {"model_name": "vectors", "model_base_path": saved_models / "vectors", "rest_api_port": 0}
    server = ServerProcess(runtime_python, tmp_path / "server", flags, from_nothing=True).start().wait_until_ready()
    ready = json.loads(server.ready_file.read_text())
    assert ready["pid"] == server.process.pid
    assert ready["grpc_port"] > 0
    assert ready["rest_api_port"] == 0
    assert server.terminate() == 0
    assert not server.ready_file.exists()


def worked_s(server: ServerProcess) -> float:
    """Seconds of a core that the server has taken."""
    taken = psutil.Process(server.process.pid).cpu_times()
    return taken.user + taken.system


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_answers_what_is_in_flight_and_exits_with_zero(
    start_server: Callable[..., ServerProcess], saved_models: Path, number: signal.Signals
) -> None:
    server = start_server(model_name="vectors", model_base_path=saved_models / "vectors")
    slow = {"signature_name": "slow", "inputs": 600}
    server.predict("vectors", {**slow, "inputs": 1})
    answers: list[object] = []
    client = threading.Thread(target=lambda: answers.append(server.predict("vectors", slow)))
    began_s = worked_s(server)
    client.start()
    wait_for(lambda: worked_s(server) > began_s + 0.1, "the request is answered")
    server.process.send_signal(number)
    assert server.process.wait(60) == 0
    client.join()
    assert answers
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", int(server.address.rpartition(":")[2])), timeout=5)
