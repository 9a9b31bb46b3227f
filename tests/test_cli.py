"""``airflow hops``, by Airflow's own parser in this process; ``test_serve.py`` starts a command as a user does."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
from argparse import Namespace
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_hops.cli import doctor as checks
from airflow_hops.cli.arguments import command
from airflow_hops.cli.terminal import print_warning, shown
from airflow_hops.core.errors import BadInput
from airflow_hops.core.profiles import STAMP_NAME, profile_of
from airflow_hops.core.steps.protocol import Line
from airflow_hops.hooks.hops import HopsHook
from airflow_hops.runner.runtime import RuntimeHook


def test_the_commands_are_in_airflows_own_help(hops: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        hops("--help")
    output = capsys.readouterr().out
    assert end.value.code == 0
    assert "doctor" in output and "runtime" in output


FOREIGN = "a\x1b[2J\x1b]0;title\x07\x9b1A\r\u202eb\x1b[8mc\x1b[1;31md\x1b[0m\te\n"


def print_foreign(args: Any) -> None:
    """Prints a text of others as commands do."""
    from airflow_hops.airflow_internals.cli import AirflowConsole

    print(FOREIGN)
    print(FOREIGN, file=sys.stderr)
    AirflowConsole().print_as([{FOREIGN: FOREIGN}], output="plain")
    AirflowConsole().print_as([{FOREIGN: FOREIGN}], output="table")
    raise BadInput(FOREIGN)


def test_commands_print_no_control_characters_of_others(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        command(f"{__name__}.print_foreign", "Prints", ()).func(Namespace())
    output = capsys.readouterr()
    for text in (output.out, output.err, str(end.value)):
        assert "\\x1b[2J" in text and not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", text), text
    colours = "\x1b[38;5;8ma\x1b[38;2;8;8;8;1mb\x1b[m"
    assert shown(colours, styles=True) == colours
    assert shown("\x1b[" + "1" * 60, styles=True) == "\\x1b[" + "1" * 60
    assert shown("\x1b[31;08mx", styles=True) == "\\x1b[31;08mx"
    assert shown("\x1b[1;31md\x1b[0m\x1b[8m\x1b[2K", styles=True) == "\x1b[1;31md\x1b[0m\\x1b[8m\\x1b[2K"


@pytest.mark.slow
def test_warnings_of_a_commands_step_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    lines = {"reads": logging.INFO, "'zip' is text": logging.WARNING, "Traceback": logging.ERROR}
    for line in (*(Line(level, text) for text, level in lines.items()), Line(logging.WARNING, "", 0.5)):
        print_warning(line)
    assert capsys.readouterr().err == "warning: 'zip' is text\n"


def test_command_definitions_import_no_implementation() -> None:
    program = (
        "import airflow.cli.cli_config, sys; before = set(sys.modules); import airflow_hops.cli.definition as d; "
        "d.get_hops_cli_commands(); print(*sorted(set(sys.modules) - before))"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    imported = set(result.stdout.split())
    slow = {
        "airflow_hops.runner.connections",
        "airflow_hops.hooks",
        "airflow_hops.core.store",
        "grpc",
        "numpy",
        "pandas",
        "rich",
    }
    assert not imported & slow
    commands = {name for name in imported if name.startswith("airflow_hops.") and ".cli." in name}
    assert {name.rpartition(".")[2] for name in commands} == {"definition", "arguments"}


def test_runtime_path_follows_the_configuration(hops: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert hops("runtime", "path")[1].strip() == os.environ["AIRFLOW__HOPS__RUNTIME"]
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    monkeypatch.setenv("AIRFLOW__HOPS__RUNTIME", "")
    assert hops("runtime", "path")[1].strip() == str(tmp_path / "hops-runtime")


@pytest.mark.runtime
@pytest.mark.slow
def test_the_doctor_finds_the_libraries_of_the_runtime_environment(
    hops: Any, runtime: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mlflow.py").write_text("raise ImportError('somebody else has put this into the working directory')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AIRFLOW_CONN_HOPS_DEFAULT", '{"conn_type": "hops", "extra": {"spark_conn_id": "spark_local"}}')
    code, output, _ = hops("doctor", "--output", "json")
    results = {check["name"]: check for check in json.loads(output)}
    for name in ("tensorflow", "tensorflow_data_validation", "tensorflow_serving", "pyspark", "mlflow", "horovod"):
        assert results[name]["status"] == "ok", results[name]
    assert results["horovod"]["found"].endswith("built with TensorFlow and Gloo")
    profile = profile_of(runtime)
    assert profile and results["protobuf"]["found"].startswith(f"{profile.protobuf}.")
    source = "environment variable AIRFLOW_CONN_SPARK_LOCAL"
    assert results["connection spark_local"]["found"] == f"master local[2], from {source}"
    assert results["Java"]["status"] == "ok"
    failed = [check for check in results.values() if check["status"] == "fail"]
    assert (code == 0) == (not failed), failed


@pytest.mark.runtime
def test_doctor_timeout_does_not_suggest_a_new_environment(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "_PROBE_TIMEOUT_S", 0.01)
    (result,) = checks.check_libraries(runtime)
    assert (result.status, result.found) == ("fail", "no answer within 0.01 s")
    assert "try again" in result.advice and "create" not in result.advice


def test_the_doctor_fails_without_a_runtime_environment_and_says_how_to_make_one(
    hops: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__HOPS__RUNTIME", str(tmp_path / "none"))
    code, output, errors = hops("doctor")
    assert code == 1
    assert "checks failed: " in errors and "runtime environment" in errors
    table = " ".join(output.split())
    assert "airflow hops runtime create" in table
    assert "connection spark_default ok none: Spark runs on this machine" in table


def _answering_python(runtime: Path, answer: object) -> None:
    """Makes a Python that answers any program with this value."""
    (runtime / "bin").mkdir(exist_ok=True)
    (runtime / "bin/python").write_text(f"#!/bin/sh\necho '{json.dumps(answer)}'\n")
    (runtime / "bin/python").chmod(0o755)


@pytest.mark.parametrize(
    ("kind", "cuda"), [("runtime.txt", ""), ("runtime-cuda.txt", "--cuda "), ("unmanaged", "--cuda ")]
)
def test_a_protobuf_newer_than_tensorflow_is_recognised(tmp_path: Path, kind: str, cuda: str) -> None:
    (tmp_path / "pyvenv.cfg").touch()
    _answering_python(tmp_path, {})
    if kind == "unmanaged":
        (tmp_path / "lib/python3.11/site-packages/nvidia_cuda_runtime_cu12-12.3.101.dist-info").mkdir(parents=True)
        assert checks.check_runtime(tmp_path).advice.endswith(f"airflow hops runtime create --force --cuda {tmp_path}")
    else:
        (tmp_path / STAMP_NAME).write_text(f"{'0' * 64}\n{tmp_path}\n{kind}\n")
    error = "AttributeError: MessageFactory object has no attribute GetPrototype"
    facts = {"version": "7.35.1", "seconds": 0.1, "error": None}
    answer = {"modules": {"google.protobuf": facts, "tensorflow": {**facts, "error": error}}}
    _answering_python(tmp_path, answer)
    results = {check.name: check for check in checks.check_libraries(tmp_path)}
    assert results["protobuf"].status == results["tensorflow"].status == "fail"
    assert "TensorFlow 2.16 needs protobuf 4" in results["protobuf"].advice
    assert results["tensorflow"].advice == (
        f"protobuf is newer than TensorFlow supports: airflow hops runtime create --force {cuda}{tmp_path}"
    )


GPU = ["NVIDIA H200, 143771 MiB, 580.95"]


@pytest.mark.parametrize(
    ("cuda", "nccl", "seen", "gpus", "status", "found", "advice"),
    [
        (False, 0, 0, [], "ok", "not in {base}; no GPU: no driver", ""),
        (False, 0, 0, GPU, "warn", "not in {base}; no GPU: no driver", "airflow hops runtime create {path} --cuda"),
        (True, 21903, 0, [], "warn", "CUDA 12.3.101, NCCL 2.19.3; no GPU: no driver; training and serving run", ""),
        (True, 21903, 2, GPU, "ok", "CUDA 12.3.101, NCCL 2.19.3; TensorFlow sees 2 GPUs", ""),
        (True, 0, 2, GPU, "warn", "; Horovod without NCCL; ", "runtime create {path} --cuda --horovod --force"),
    ],
)  # fmt: skip
def test_doctor_reports_cuda_and_missing_gpus(
    tmp_path: Path, cuda: bool, nccl: int, seen: int, gpus: list[str], status: str, found: str, advice: str
) -> None:
    for name in ["nvidia_cuda_runtime_cu12-12.3.101", "nvidia_nccl_cu12-2.19.3"] * cuda:
        (tmp_path / f"lib/python3.11/site-packages/{name}.dist-info").mkdir(parents=True)
    no_gpu = None if seen else "no driver"
    answer = {"gpus": ["GPU"] * seen, "no_gpu": no_gpu, "horovod": {"gloo": True, "mpi": False, "nccl": nccl}}
    check = checks.check_cuda(tmp_path, answer, gpus)
    assert check.status == status
    assert found.format(base=tmp_path.name) in check.found
    assert advice.format(path=tmp_path) in check.advice
    horovod = {"version": "0.28.1", "seconds": 0.0, "error": None}
    _answering_python(tmp_path, {**answer, "modules": {"horovod.tensorflow": horovod}})
    built = next(each for each in checks.check_libraries(tmp_path) if each.name == "horovod")
    assert built.found.endswith("NCCL 2.19.3" if nccl else "and Gloo")


@pytest.mark.runtime
def test_gpu_error_quotes_the_driver(runtime: Path) -> None:
    program = (
        "from airflow_hops.ml.step.probe import why_no_gpu\n"
        "import os; print(why_no_gpu('libcuda-none.so.1')); os.environ['CUDA_VISIBLE_DEVICES'] = ''\n"
        "print(why_no_gpu('libc.so.6'))"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(checks.__file__).parents[2])}
    command = [str(runtime / "bin" / "python"), "-c", program]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    first, second = result.stdout.splitlines()
    assert first.startswith("there is no NVIDIA driver (libcuda-none.so.1: cannot open shared object file")
    assert second == "CUDA_VISIBLE_DEVICES is ''"


@pytest.mark.parametrize(
    ("fields", "status", "found"),
    [
        ({"port": "0"}, "fail", "'serving_port' is '0'; expected a port from 1 to 65535"),
        ({"port": "grpc"}, "fail", "'serving_port' is 'grpc'; expected a port"),
        ({"kind": "bundle"}, "fail", "'serving_kind' is 'bundle', expected one of batch, bundled"),
        ({"timeout": "soon"}, "fail", "'serving_timeout' is 'soon'; expected a number"),
        ({"rest_tls": "maybe"}, "fail", "'serving_rest_tls' is 'maybe'; expected true or false"),
        ({"ca_file": "/none/ca.pem"}, "fail", "'serving_ca_file' is '/none/ca.pem'; there is no such file"),
        ({"port": "1"}, "ok", "free"),
    ],
)
def test_a_model_servers_fields_are_checked(fields: dict[str, str], status: str, found: str) -> None:

    services = {f"serving_{name}": value for name, value in fields.items()}
    settings = replace(RuntimeHook().settings, services=services)
    (check,) = checks.check_serving(settings)
    assert check.status == status and found in check.found


def test_store_that_is_no_folder_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    connection = {"conn_type": "hops", "extra": {"store": f"file://{tmp_path}/file"}}
    monkeypatch.setenv("AIRFLOW_CONN_HOPS_DEFAULT", json.dumps(connection))
    check = checks.check_store(HopsHook("hops_default"))
    assert (check.status, str(tmp_path) in check.found) == ("fail", True)


def test_doctor_fails_for_teams_without_a_triggerer(teams: Any) -> None:
    from airflow.models.trigger import Trigger
    from airflow.utils.session import create_session

    teams(risk="of_risk", ads="of_ads")
    old, new = (datetime.now(UTC) - timedelta(minutes=minutes) for minutes in (10, 1))
    rows = [("risk", old, None), ("risk", old, None), ("ads", old, 7), ("ads", new, None), (None, old, 7)]
    added = [Trigger("x.Y", {}, created_date=time, team_name=team) for team, time, _ in rows]
    with create_session() as session:
        for trigger, (_, _, triggerer) in zip(added, rows, strict=True):
            trigger.triggerer_id = triggerer
            session.add(trigger)
    try:
        (check,) = (check for check in checks.check_triggerers() if "team" in check.found)  # others may wait, too
        assert (check.status, check.found) == ("fail", "none takes the triggers of team 'risk': 2 deferred tasks wait")
        assert check.advice == "start one: airflow triggerer --team-name risk"
    finally:
        with create_session() as session:
            for trigger in added:
                session.delete(session.merge(trigger))
    assert not [check for check in checks.check_triggerers() if "'risk'" in check.found]
