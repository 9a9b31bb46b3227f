"""Starts steps in the runtime environment of this machine."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from airflow_hops.artifacts import BadInput
from airflow_hops.environments import environment_state, pins_fingerprint
from airflow_hops.java import find_java
from airflow_hops.launchers.process import Detached, StepProcess
from airflow_hops.launchers.warm import WarmStart
from airflow_hops.protocol import WORKER_VARIABLE, process_started


class LocalLauncher:
    """Runs ``python -m airflow_hops.runtime`` with the runtime environment's Python.

    Args:
        runtime: Folder of the runtime environment.
        warm: Forks steps from a process that has imported the ML libraries; None starts each step from nothing.
    """

    def __init__(self, runtime: Path, warm: WarmStart | None = None) -> None:
        self.runtime, self.warm = runtime, warm

    def start(
        self, spec_path: Path, code: Path, code_paths: Sequence[str], *, detached: Detached | None = None
    ) -> StepProcess:
        """Starts the step of a spec.

        Args:
            spec_path: The step's ``spec.json``; its folder becomes the working directory.
            code: Folder that holds this package, and nothing else of the Airflow environment.
            code_paths: Folders of user code.
            detached: The step's id and log, where it is to outlive this process.

        Raises:
            BadInput: there is no runtime environment.
        """
        python = runtime_python(self.runtime)
        environment = step_environment(self.runtime, code, code_paths)
        if self.warm is not None:
            process = self.warm.start(spec_path, environment, detached=detached)
            if process is not None:
                return process
        command = [str(python), "-m", "airflow_hops.runtime", str(spec_path)]
        return StepProcess.start(command, env=environment, cwd=spec_path.parent, detached=detached)


def runtime_python(runtime: Path) -> Path:
    """The Python of a runtime environment.

    Raises:
        BadInput: there is none, its installation did not finish, or it is one of other pins.
    """
    python = runtime / "bin" / "python"
    if not python.exists():
        raise BadInput(
            f"runtime environment {str(runtime)!r}: there is no bin/python in it; make it with "
            f"'airflow hops runtime create {runtime}', or name another in the connection's field 'runtime' or in "
            "[hops] runtime"
        )
    state = environment_state(runtime, pins_fingerprint())
    if state.name in ("unfinished", "stale"):
        raise BadInput(
            f"runtime environment {str(runtime)!r}: {state.detail}; run 'airflow hops runtime create {runtime}'"
        )
    return python


def step_environment(runtime: Path, code: Path, code_paths: Sequence[str] = ()) -> dict[str, str]:
    """The environment of a step: the worker's, less what would mix the two environments.

    Args:
        runtime: Folder of the runtime environment; its ``bin`` comes first on ``PATH``.
        code: Folder that holds this package.
        code_paths: Folders of user code, which come after the package.
    """
    kept = dict(os.environ)
    for name in list(kept):
        # The worker's secrets and settings are Airflow's; TensorFlow's and Spark's Python must find only their own.
        if name.startswith(("AIRFLOW_", "_AIRFLOW", "PYTHON", "VIRTUAL_ENV", "SPARK_")):
            del kept[name]
    java = find_java(runtime, kept)
    if java is not None:
        kept["JAVA_HOME"] = str(java.home)
    return {
        **kept,
        WORKER_VARIABLE: f"{os.getpid()}:{process_started(os.getpid())}",
        "PATH": f"{runtime / 'bin'}:{kept.get('PATH', os.defpath)}",
        "PYTHONPATH": os.pathsep.join([str(code), *code_paths]),
        "PYTHONUNBUFFERED": "1",
        "PYSPARK_PYTHON": str(runtime / "bin" / "python"),
        "PYSPARK_DRIVER_PYTHON": str(runtime / "bin" / "python"),
        # TensorFlow and Google's clients greet every import with lines that alarm and mean nothing; what fails raises.
        "TF_CPP_MIN_LOG_LEVEL": kept.get("TF_CPP_MIN_LOG_LEVEL", "3"),
        "PYTHONWARNINGS": "ignore::FutureWarning",
        "TF_ENABLE_ONEDNN_OPTS": kept.get("TF_ENABLE_ONEDNN_OPTS", "0"),
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "GIT_PYTHON_REFRESH": "quiet",
    }
