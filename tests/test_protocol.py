"""The step protocol, with real processes in the runtime environment: started from nothing, and from a warm process."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import RetryAction
from step_runner import REPOSITORY
from waiting import is_gone, wait_for
from world import refused, run_python

from airflow_hops.airflow_internals.tasks import AirflowFailException
from airflow_hops.core.artifacts.artifact import Artifact, Producer
from airflow_hops.core.errors import BadInput, HopsError, MissingColumn, Preempted, StepFailed, step_error
from airflow_hops.core.steps.protocol import Line, Output, StepResult, StepSpec, check_json, format_record, parse_line
from airflow_hops.operators import HopsRetryPolicy
from airflow_hops.operators.base import airflow_error
from airflow_hops.runner.launchers.local import LocalLauncher
from airflow_hops.runner.runtime import WAITS_HERE, RuntimeHook

pytestmark = pytest.mark.runtime
CODE = str(Path(__file__).parent)


@dataclass
class Step:
    """Runs functions of protocol_steps: ``step("say", text="…")``."""

    runner: Any
    launcher: LocalLauncher

    def __call__(self, function: str, *, kind: str | None = None, task_id: str | None = None, **params: Any) -> Any:
        return self.run(f"protocol_steps:{function}", params=params, kind=kind, task_id=task_id)

    def run(self, entry: str, **options: Any) -> Any:
        return self.runner(entry, code_paths=(CODE,), launcher=self.launcher, **options)

    @property
    def lines(self) -> list[Any]:
        return list(self.runner.lines)


@pytest.fixture(params=["cold", pytest.param("warm", marks=pytest.mark.server)])
def launcher(request: pytest.FixtureRequest, runtime: Path) -> LocalLauncher:
    if request.param == "cold":
        return LocalLauncher(runtime)
    warm: LocalLauncher = request.getfixturevalue("warm_launcher")
    return warm


@pytest.fixture
def step(run_step: Any, launcher: LocalLauncher) -> Step:
    """Starts steps either way."""
    return Step(run_step, launcher)


@pytest.fixture
def warm_step(run_step: Any, warm_launcher: LocalLauncher) -> Step:
    return Step(run_step, warm_launcher)


def pid_in(path: Path) -> int:
    """Returns the process id that a file holds; 0 as long as it holds none."""
    return int(path.read_text() or 0) if path.exists() else 0


def test_lines_carry_level_progress_and_metrics(step: Step) -> None:
    value = step("say")
    lines = [(line.level, line.text) for line in step.lines]
    assert (logging.INFO, "a plain line") in lines
    assert (logging.WARNING, "a warning") in lines
    assert lines.index((logging.ERROR, "an error")) + 1 == lines.index((logging.ERROR, "of two lines"))
    assert (logging.INFO, "to the other stream") in lines
    assert not any("nobody asked" in text for _, text in lines)
    progress = [(line.progress, line.text, dict(line.metrics)) for line in step.lines if line.progress is not None]
    assert progress == [(0.25, "a quarter", {"loss": 0.5}), (1.0, "more than all", {})]
    assert ".venv-runtime" in value["python"] or os.environ.get("HOPS_RUNTIME", "-") in value["python"]
    assert not Path(value["scratch"]).exists()
    assert not Path(value["cwd"]).exists()


def test_lines_are_streamed_while_the_step_runs(runtime: Path, launcher: LocalLauncher, tmp_path: Path) -> None:
    heard = tmp_path / "heard"
    spec = StepSpec(step="say", entry="protocol_steps:say", params={"heard": str(heard)}, code_paths=(CODE,))

    def listen(line: Line) -> None:
        if line.text == "a plain line":
            heard.touch()

    RuntimeHook().run(spec, launcher=launcher, cache=False, on_line=listen)
    assert heard.exists()


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The temporary folder of the worker."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return folder


def test_killed_step_leaves_no_temporary_files(warm_step: Step, temporary: Path) -> None:
    with refused("SIGKILL", retried=True):
        warm_step("leave_files", full=False)
    (left,) = [line.text.split()[1:] for line in warm_step.lines if line.text.startswith("left ")]
    assert len({str(temporary) in folder for folder in left}) == 1
    assert list(temporary.iterdir()) == []


def test_full_temporary_folder_is_named(warm_step: Step, small_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with refused(r"no temporary folder can be written .* name another in TMPDIR", retried=True):
        warm_step("leave_files", full=True)
    monkeypatch.setattr(tempfile, "tempdir", str(small_folder))
    (small_folder / "filler").write_bytes(bytes(os.statvfs(small_folder).f_bavail * os.statvfs(small_folder).f_bsize))
    with pytest.raises(HopsError, match=r"no space left on the device that holds .*; free some space and retry"):
        warm_step("leave_files", full=True)
    assert [path.name for path in small_folder.iterdir()] == ["filler"]


@pytest.mark.parametrize(
    ("kind", "message", "retryable", "delay_s"),
    [
        ("ValueError", "ValueError: this is a ValueError", True, None),
        ("HopsError", "step 'protocol_steps-raise_error': this is a HopsError", True, None),
        ("BadInput", "step 'protocol_steps-raise_error': this is a BadInput", False, None),
        ("SystemExit", "SystemExit: this is a SystemExit", True, None),
        ("NoSpace", "no space left on the device that holds /store/part-0.parquet", True, 300),
        ("long name", "a name is too long for a file system, which takes 255 bytes; shorten it", False, None),
        ("no answer", "MLflow does not answer", True, 300),
        ("preempted", "the training was asked to end", True, 7),
        ("no column", "flights.csv: there is no column 'dest'", False, None),
    ],
)
def test_exception_ends_the_step_with_its_message(
    warm_step: Step, kind: str, message: str, retryable: bool, delay_s: float | None
) -> None:
    with refused(message, retried=retryable) as caught:
        warm_step.run("protocol_steps:raise_error", params={"kind": kind})
    trace = [line.text for line in warm_step.lines if line.level == logging.ERROR]
    assert trace[0] == "Traceback (most recent call last):"
    assert any("protocol_steps.py" in text for text in trace)
    failure = airflow_error(caught.value)
    failure.__cause__ = caught.value
    error = step_error(failure)
    kinds = {"preempted": Preempted, "no column": MissingColumn}
    assert type(error) is kinds.get(kind, HopsError if retryable else BadInput)
    assert not isinstance(error, MissingColumn) or (error.where, error.column) == ("flights.csv", "dest")
    decision = HopsRetryPolicy(delay=timedelta(seconds=7)).evaluate(failure, 1, 0)
    assert decision.retry_delay == (delay_s and timedelta(seconds=delay_s))
    again = getattr(RetryAction, "RESCHEDULE", RetryAction.RETRY)  # Airflow 3.3 cannot reschedule
    assert decision.action is (RetryAction.DEFAULT if delay_s is None else again)
    assert isinstance(failure, AirflowFailException) is not retryable


def test_out_of_memory_is_reported_as_such(warm_step: Step) -> None:
    with pytest.raises(StepFailed, match=r"out of memory .*give the step less data or the machine more memory"):
        warm_step("exhaust_memory")


def test_kernel_memory_kill_is_reported_and_leaves_no_artifact(step: Step, small_memory: Path) -> None:
    with refused(r"ended by SIGKILL .*the kernel for lack of memory", retried=True):
        step("outgrow", kind="text", group=str(small_memory))
    assert not step.runner.store.exists(step.runner.last_uri)


def test_step_with_the_longest_task_id_runs(warm_step: Step) -> None:
    assert warm_step("say", task_id="t" * 250)["python"]


def test_step_without_result_fails(step: Step) -> None:
    with pytest.raises(StepFailed) as caught:
        step("end_without_result")
    text = str(caught.value)
    assert "ended by exit code 3 without a result; its last lines:" in text
    assert text.splitlines()[1:] == [f"  line {number}" for number in range(10, 30)]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"a": [1, {"b": object()}]}, r"it\['a'\]\[1\]\['b'\] is a builtins.object"),
        ({1: "one"}, "has the key 1 of type int; expected text"),
    ],
)
def test_value_that_is_not_json_is_named(value: Any, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        check_json(value, "it")


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("protocol_steps:nothing", "has no function 'nothing'"),
        ("protocol_steps:logging", "is a module, expected a function"),
        ("no_such_module:run", "there is no module 'no_such_module' on the step's path"),
        ("protocol_steps", "expected 'module:function', found 'protocol_steps'"),
        (
            "protocol_steps:return_value",
            "protocol_steps:return_value returned is a builtins.set; expected a JSON value",
        ),
    ],
)
def test_unusable_entry_or_value_is_named(warm_step: Step, entry: str, message: str) -> None:
    with refused(message):
        warm_step.run(entry, task_id="step")


@pytest.mark.parametrize("kind", ["ModuleNotFoundError", "of another process"])
def test_missing_module_names_environment_and_command(warm_step: Step, runtime: Path, kind: str) -> None:
    command = f"add its package with 'airflow hops runtime install PACKAGE --path {runtime}'"
    with refused("No module named 'nowhere'", retried=kind == "of another process") as caught:
        warm_step.run("protocol_steps:raise_error", params={"kind": kind})
    assert f"runtime environment {runtime}, where there is no module 'nowhere': {command}" in str(caught.value)


def test_retry_replaces_files_of_a_killed_try(run_step: Any, warm_launcher: LocalLauncher) -> None:
    store = run_step.store
    uri = store.address(Producer("d", "r", "write"), "text")
    folder = Path(uri.removeprefix("file://"))

    def run(text: str, end: int = 0) -> Artifact:
        hook = RuntimeHook()
        hook.__dict__["settings"] = replace(hook.settings, store=store.root)
        spec = StepSpec(
            step="write",
            entry="protocol_steps:write",
            params={"text": text, "end": end},
            output=Output(uri, "text"),
            producer=Producer("d", "r", "write"),
            code_paths=(CODE,),
        )
        return Artifact.from_dict(hook.run(spec, launcher=warm_launcher, cache=False).value)

    with pytest.raises(StepFailed, match="SIGKILL"):
        run("half", int(signal.SIGKILL))
    assert not store.exists(uri)
    assert [path.name.partition("-")[0] for path in folder.parent.iterdir()] == ["text!staging"]
    first = run("first")
    assert [path.name for path in folder.parent.iterdir()] == ["text"]
    with pytest.raises(StepFailed, match="SIGKILL"):
        run("half", int(signal.SIGKILL))
    assert store.verify(first).fingerprint == first.fingerprint
    second = run("second")
    assert second.uri == first.uri
    assert second.fingerprint != first.fingerprint
    assert (folder / "text.txt").read_text() == "second"
    assert [path.name for path in folder.parent.iterdir()] == ["text"]


def test_step_of_this_machine_is_not_deferred(warm_launcher: LocalLauncher, capfd: pytest.CaptureFixture[str]) -> None:
    deferred: list[Any] = []
    spec = StepSpec(step="look", entry="protocol_steps:look_around", code_paths=(CODE,))
    assert RuntimeHook().run(spec, launcher=warm_launcher, cache=False, defer=lambda *left: deferred.append(left)).value
    assert not deferred and WAITS_HERE in capfd.readouterr().out


def test_successful_step_leaves_no_process(step: Step, tmp_path: Path) -> None:
    assert step("leave_behind", folder=str(tmp_path)) == 1
    pid = int((tmp_path / "daemon").read_text())
    wait_for(lambda: is_gone(pid), "the daemon has ended")


WORKER = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from airflow_hops.runner.runtime import RuntimeHook
from airflow_hops.runner.launchers.local import LocalLauncher
from airflow_hops.runner.launchers.warm import WarmStart
from airflow_hops.core.steps.protocol import StepSpec
runtime, code, folder, socket = Path(sys.argv[2]), sys.argv[3], sys.argv[4], sys.argv[5]
spec = StepSpec(step="hang", entry="protocol_steps:hang", params={"folder": folder}, code_paths=(code,))
RuntimeHook().run(spec, launcher=LocalLauncher(runtime, WarmStart(Path(socket)) if socket else None), cache=False)
"""


@pytest.mark.slow
def test_step_does_not_outlive_a_killed_worker(launcher: LocalLauncher, runtime: Path, tmp_path: Path) -> None:
    socket = str(launcher.warm.path) if launcher.warm else ""
    worker = subprocess.Popen(
        [sys.executable, "-c", WORKER, str(REPOSITORY), str(runtime), CODE, str(tmp_path), socket],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    names = ("fork", "daemon", "session", "step")
    try:
        wait_for(lambda: all(pid_in(tmp_path / name) for name in names), "the family hangs")
    finally:
        worker.kill()
        worker.wait()
    pids = [pid_in(tmp_path / name) for name in names]
    wait_for(lambda: all(map(is_gone, pids)), "the step and its family have ended")


def test_parameters_that_are_not_json_are_refused_before_anything_starts() -> None:
    check_json({"a": [1, 2.5, None, True, "x", {"b": ()}]}, "it")
    with pytest.raises(BadInput, match=r"step 'say': params\['a'\]\[1\] is a pathlib\.[\w.]+; expected a JSON value"):
        StepSpec(step="say", entry="protocol_steps:say", params={"a": [1, Path("/x")]})


def test_connection_secrets_are_in_no_file_or_child_process(step: Step) -> None:
    result = step.run("protocol_steps:look_around", services={"serving_token": "abc123"})
    assert result["services"]["serving_token"] == "abc123"
    assert set(result["files"]) >= {"spec.json"}
    for text in (*result["files"].values(), result["environment_of_a_child"], result["own_environment"]):
        assert "abc123" not in text


def test_spec_round_trips_through_its_file() -> None:
    artifact = Artifact("file:///a", "examples", "f", metrics={"m": 1.0}, properties={"window": ["a", "b"]})
    spec = StepSpec(
        step="s",
        entry="m:f",
        params={"x": [1, {"y": None}]},
        inputs={"examples": (artifact, artifact)},
        output=Output("file:///o", "model"),
        producer=Producer("d", "r", "t", 3, 2),
        code_paths=("/a", "/b"),
        storage_options={"secret": "abc123"},
        services={"tracking_uri": "https://ann:abc123@mlflow"},
    )
    variables = {"HOME": "/root", **spec.variables()}
    assert StepSpec.from_json(spec.to_json(), variables) == spec
    assert variables == {"HOME": "/root"}
    assert "abc123" not in spec.to_json() + repr(spec)


@pytest.mark.parametrize(
    ("text", "level"),
    [
        ("I0000 00:00:1795630190.843438   23456 cudart_stub.cc:31] Could not find cuda drivers", logging.DEBUG),
        ("E0000 00:00:1795631841.502953   13656 cuda_platform.cc:52] failed call to cuInit: INTERNAL", logging.DEBUG),
        ("WARNING: All log messages before absl::InitializeLog() is called are written to STDERR", logging.DEBUG),
        ("F0000 00:00:1795630288.853986   29015 control_flow_ops.cc:737] Abort_op intentional failure", logging.INFO),
        ("I0000 is a flight", logging.INFO),
    ],
)
def test_google_library_lines_are_debug(text: str, level: int) -> None:
    assert parse_line(text) == Line(level, text)


@pytest.mark.parametrize(
    "text", ["plain", "", "\x1enot json", "\x1e[]", '\x1e{"level": 3}', '\x1e{"level": "INFO"}', "\x1e"]
)
def test_records_round_trip_through_lines_and_other_text_is_plain(text: str) -> None:
    line = parse_line(text + "\n")
    assert (line.level, line.text, line.progress) == (logging.INFO, text, None)
    line = parse_line(format_record(f"half\n{text}", level=logging.WARNING, progress=0.5, metrics={"loss": 0.1}))
    result = (logging.WARNING, f"half\n{text}", 0.5, {"loss": 0.1})
    assert (line.level, line.text, line.progress, line.metrics) == result


IMPORTS = """
import importlib, json, pkgutil, sys
import airflow.sdk, airflow.sdk.bases.decorator
from airflow.sdk import DAG, Asset, BaseHook, BaseOperator
from airflow.configuration import conf
import airflow.providers.apache.spark.hooks.spark_submit
(DAG, Asset, BaseHook, BaseOperator, conf.get("core", "dags_folder"))
before = set(sys.modules)
import airflow_hops.operators, airflow_hops.decorators.hops
for module in pkgutil.iter_modules(airflow_hops.operators.__path__, "airflow_hops.operators."):
    importlib.import_module(module.name)
print(json.dumps([sorted(before), sorted(set(sys.modules) - before)]))
"""


@pytest.mark.slow
def test_importing_operators_is_fast_and_loads_no_ml_library() -> None:
    airflows, added = json.loads(run_python(IMPORTS).splitlines()[-1])
    heavy = {"tensorflow", "pyspark", "mlflow", "horovod", "pyarrow", "pandas", "numpy"}
    assert heavy.isdisjoint([*airflows, *added])
    # A module of this package takes about a millisecond: the number of them is what the import costs.
    own = [name for name in added if name.partition(".")[0] == "airflow_hops"]
    assert len(own) <= 155
    others = {name.partition(".")[0] for name in added} - {"airflow_hops"} - sys.stdlib_module_names
    assert others <= {"airflow", "asgiref"}  # asgiref is Airflow's
    assert len(added) - len(own) <= 15


def test_result_of_another_versions_job_is_read(tmp_path: Path) -> None:
    result = {"value": 0.7, "is_artifact": False, "error_type": None, "error": None, "retryable": True, "seconds": {}}
    (tmp_path / "result.json").write_text(json.dumps(result))
    read = StepResult.read(tmp_path / "result.json")
    assert read is not None and read.value == 0.7
    assert StepResult.from_dict(result) == read
    read.write(tmp_path / "copy.json")
    assert StepResult.read(tmp_path / "copy.json") == read
