"""The program: flags, ports, start and stop."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.serving.conftest import Server

pytestmark = pytest.mark.runtime


@pytest.fixture
def run(runtime_python: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs the program to its end."""
    repository = Path(__file__).resolve().parents[2]

    def run_program(*arguments: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(runtime_python), "-m", "airflow_hops.serving", *map(str, arguments)],
            cwd=repository,
            capture_output=True,
            text=True,
            timeout=120,
        )

    return run_program


@pytest.mark.parametrize(
    ("flag", "advice"), [("port", "--port=0 takes a free one"), ("rest_api_port", "--rest_api_port=auto")]
)
def test_taken_port_is_one_line_that_names_flag_and_port(
    run: Callable[..., subprocess.CompletedProcess[str]], saved_models: Path, flag: str, advice: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        other = [] if flag == "port" else ["--port=0"]
        done = run(f"--{flag}={port}", *other, f"--model_base_path={saved_models}/flights")
    assert done.returncode == 1
    line = [line for line in done.stderr.splitlines() if "taken" in line]
    assert len(line) == 1
    assert line[0].startswith(f"airflow_hops.serving: --{flag}={port}: port {port} of 127.0.0.1 is taken")
    assert advice in line[0]
    assert "Traceback" not in done.stderr


def test_port_of_another_model_server_is_not_shared(
    run: Callable[..., subprocess.CompletedProcess[str]], shared_server: Server, saved_models: Path
) -> None:
    port = shared_server.address.rpartition(":")[2]
    done = run(f"--port={port}", f"--model_base_path={saved_models}/flights")
    assert done.returncode == 1
    assert f"--port={port}: port {port} of 127.0.0.1 is taken" in done.stderr


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
        (["--capture_sampling_percent=101", "--model_base_path=/m"], "expected a percent from 0 to 100"),
    ],
)
def test_wrong_flag_is_one_line(
    run: Callable[..., subprocess.CompletedProcess[str]], arguments: list[str], message: str
) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_config_file_that_is_missing_or_wrong_is_one_line(
    run: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    missing = run(f"--model_config_file={tmp_path}/none.config")
    wrong = tmp_path / "wrong.config"
    wrong.write_text("model_config_list { config { name: 7 } }")
    unparsed = run(f"--model_config_file={wrong}")
    assert (missing.returncode, unparsed.returncode) == (1, 1)
    assert missing.stderr.splitlines() == [f"airflow_hops.serving: {tmp_path}/none.config: no such file"]
    assert (
        f"Invalid protobuf file: '{wrong}': does not parse as a ModelServerConfig in protobuf text format: 1:36"
        in unparsed.stderr
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


def test_version_and_help(run: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    version = run("--version")
    assert version.returncode == 0
    assert "TensorFlow Library: 2." in version.stdout
    usage = run("--help")
    assert usage.returncode == 0
    not_shown = [name for name in TENSORFLOW_SERVING_FLAGS.split() if f"  --{name}" not in usage.stdout]
    assert "--traffic_config_file" in usage.stdout
    # One that has no effect here is not in the help, and says why when it is given.
    given = run(*(f"--{name}=1" for name in not_shown), "--version")
    lines = given.stderr.splitlines()
    assert [line.partition(" has no effect here: ")[0] for line in lines] == [f"flag --{name}" for name in not_shown]


def test_unknown_flag_is_printed_and_ignored(start_server: Callable[..., Server], saved_models: Path) -> None:
    server = start_server(
        model_name="vectors", model_base_path=saved_models / "vectors", no_such_flag=1, num_tflite_pools=4
    )
    assert "unknown argument: --no_such_flag=1" in server.log()
    assert "flag --num_tflite_pools has no effect here: a request thread has an interpreter" in server.log()
    assert server.versions("vectors") == {7: "AVAILABLE"}


def test_empty_config_serves_nothing_and_is_ready(start_server: Callable[..., Server], tmp_path: Path) -> None:
    config = tmp_path / "models.config"
    config.write_text("")
    server = start_server(model_config_file=config)
    assert server.call("/readyz") == (200, {"ready": True, "models": {}, "unavailable": []})
    assert server.terminate() == 0


def test_ready_file_tells_pid_and_ports_and_goes_with_the_server(
    start_server: Callable[..., Server], saved_models: Path
) -> None:
    server = start_server(model_name="vectors", model_base_path=saved_models / "vectors", rest_api_port=0)
    ready = json.loads(server.ready_file.read_text())
    assert ready["pid"] == server.process.pid
    assert ready["grpc_port"] > 0
    assert ready["rest_api_port"] == 0
    assert server.terminate() == 0
    assert not server.ready_file.exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_answers_what_is_in_flight_and_exits_with_zero(
    start_server: Callable[..., Server], saved_models: Path, number: signal.Signals
) -> None:
    server = start_server(model_name="vectors", model_base_path=saved_models / "vectors")
    slow = {"signature_name": "slow", "inputs": 600}
    server.predict("vectors", {**slow, "inputs": 1})
    answers: list[object] = []
    client = threading.Thread(target=lambda: answers.append(server.predict("vectors", slow)))
    client.start()
    time.sleep(0.2)
    server.process.send_signal(number)
    assert server.process.wait(60) == 0
    client.join()
    assert answers
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", int(server.address.rpartition(":")[2])), timeout=5)
