"""Contract tests of launchers, for pytest in Airflow's environment."""

from __future__ import annotations

import asyncio
import json
import pkgutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from airflow_hops.core.artifacts.artifact import Producer
from airflow_hops.core.processes.files import try_lock
from airflow_hops.core.processes.polling import poll
from airflow_hops.core.steps.protocol import StepResult, StepSpec
from airflow_hops.core.store import ArtifactStore
from airflow_hops.runner.launchers.base import Launcher, find_launcher
from airflow_hops.runner.launchers.process import Deferral, StepProcess

_TIMEOUT_S = 120.0
_CODE = """
import fcntl
import os
import subprocess
import sys
import time

from airflow_hops.hops import BadInput


def succeed(context, text):
    context.progress(0.5, "half")
    return {"text": text, "secret": os.environ["CONTRACT_SECRET"], "folder": os.getcwd()}


def refuse(context):
    raise BadInput("not this input")


def die(context):
    os._exit(3)


def hang(context, marker):
    stream = open(marker, "w")
    fcntl.flock(stream, fcntl.LOCK_EX)  # until this process and its child have ended
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], pass_fds=[stream.fileno()])
    print("hanging", flush=True)
    time.sleep(600)
"""


class LauncherContract:
    """Tests that every launcher passes; a subclass names the launcher and overrides fixtures where necessary.

    Attributes:
        name: Name of the launcher in the entry-point group ``airflow_hops.launchers``.
    """

    name: ClassVar[str]

    @pytest.fixture
    def runtime(self) -> Path:
        raise NotImplementedError("return the folder that 'airflow hops runtime path' prints")

    @pytest.fixture
    def options(self) -> Mapping[str, Any]:
        """Returns additional keyword arguments of the launcher."""
        return {}

    @pytest.fixture
    def launcher(self, runtime: Path, options: Mapping[str, object]) -> Launcher:
        """Returns the launcher, created as by an operator."""
        return find_launcher(self.name)(runtime=runtime, warm=None, **options)

    @pytest.fixture
    def start(self, launcher: Launcher, tmp_path: Path) -> object:
        """Returns a function that starts a step of this module's code."""
        code, folder = tmp_path / "code", tmp_path / "step"
        code.mkdir()
        folder.mkdir()
        ArtifactStore(str(tmp_path / "store")).make()
        (code / "launcher_contract_code.py").write_text(_CODE)

        def start(function: str, **params: object) -> StepProcess:
            spec = StepSpec(
                step=function,
                entry=f"launcher_contract_code:{function}",
                params=params,
                store=str(tmp_path / "store"),
                code_paths=(str(code),),
            )
            (folder / "spec.json").write_text(spec.to_json())
            variables = {**spec.variables(), "CONTRACT_SECRET": "hidden"}
            return launcher.start(folder / "spec.json", spec.code_paths, variables=variables)

        return start

    def test_returns_result_and_output(self, start: Callable[..., StepProcess], tmp_path: Path) -> None:
        process = start("succeed", text="été")
        lines = list(process.lines())
        assert process.wait(_TIMEOUT_S) == 0, lines
        assert any("half" in line for line in lines)
        result = StepResult.read(tmp_path / "step" / "result.json")
        assert result is not None and result.error is None
        assert result.value == {"text": "été", "secret": "hidden", "folder": str(tmp_path / "step")}

    def test_writes_no_variables_to_files(self, start: Callable[..., StepProcess], tmp_path: Path) -> None:
        """Variables may contain credentials."""
        process = start("refuse")
        list(process.lines())
        process.wait(_TIMEOUT_S)
        files = [path for path in (tmp_path / "step").rglob("*") if path.is_file()]
        assert not [path for path in files if b"hidden" in path.read_bytes()]

    def test_reports_error_of_step(self, start: Callable[..., StepProcess], tmp_path: Path) -> None:
        process = start("refuse")
        list(process.lines())
        assert process.wait(_TIMEOUT_S) == 1
        result = StepResult.read(tmp_path / "step" / "result.json")
        assert result is not None and result.error == "not this input" and not result.retryable

    def test_reports_exit_without_result(self, start: Callable[..., StepProcess], tmp_path: Path) -> None:
        process = start("die")
        list(process.lines())
        assert process.wait(_TIMEOUT_S) != 0
        assert StepResult.read(tmp_path / "step" / "result.json") is None

    def test_kill_ends_descendants(self, start: Callable[..., StepProcess], tmp_path: Path) -> None:
        marker = tmp_path / "store" / "marker"
        marker.parent.mkdir(exist_ok=True)
        process = start("hang", marker=str(marker))
        next(line for line in process.lines() if "hanging" in line)
        process.kill()
        assert process.wait(_TIMEOUT_S) != 0
        with marker.open() as stream:
            poll(lambda: try_lock(stream.fileno()), 0.05, _TIMEOUT_S, "a process of the step is still running")

    def test_trigger_hands_step_over(
        self, start: Callable[..., StepProcess], launcher: Launcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Without a trigger, the process goes on; with one, a process in another folder takes the result."""
        connection = {"conn_type": "hops", "extra": {"store": str(tmp_path / "store")}}
        monkeypatch.setenv("AIRFLOW_CONN_HOPS_DEFAULT", json.dumps(connection))
        process, folder = start("succeed", text="a"), tmp_path / "step"
        trigger = launcher.defer(process, Deferral("hops_default", Producer("contract", "run", "succeed")))
        if trigger is not None:
            path, arguments = trigger.serialize()
            trigger = pkgutil.resolve_name(path)(**json.loads(json.dumps(arguments)))
            event = json.loads(json.dumps(asyncio.run(_first_event(trigger))))
            folder = folder.rename(tmp_path / "later")
            process = launcher.resume(event, folder / "spec.json", variables={"CONTRACT_SECRET": "hidden"})
        list(process.lines())
        assert process.wait(_TIMEOUT_S) == 0
        process.discard()
        result = StepResult.read(folder / "result.json")
        assert result is not None and result.value["text"] == "a"


async def _first_event(trigger: Any) -> object:
    return (await anext(trigger.run())).payload
