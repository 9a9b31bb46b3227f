"""Starts steps in the runtime environment of this machine."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from airflow_hops.core.errors import BadInput
from airflow_hops.core.processes.lifetime import own_identity
from airflow_hops.core.processes.programs import module_command, with_package
from airflow_hops.core.profiles import base_of, environment_name
from airflow_hops.core.steps.protocol import STEP_ID_VARIABLE, WORKER_VARIABLE
from airflow_hops.runner.environments.java import find_java
from airflow_hops.runner.environments.named import named_state
from airflow_hops.runner.environments.runtime import environment_state, pins_fingerprint
from airflow_hops.runner.launchers.base import Launcher
from airflow_hops.runner.launchers.process import StepProcess


class LocalLauncher(Launcher):
    """Runs ``python -m airflow_hops.ml`` with the runtime environment's Python, or as a fork of the warm process."""

    def start(self, spec_path: Path, code_paths: Sequence[str], *, variables: Mapping[str, str] = {}) -> StepProcess:
        """Starts the step of a spec; arguments as :meth:`~airflow_hops.runner.launchers.base.Launcher.start`.

        Raises:
            BadInput: the runtime environment does not exist.
        """
        python = runtime_python(self.runtime)
        env = {**step_variables(self.runtime, code_paths), **variables}
        if self.warm is not None:
            process = self.warm.start(spec_path, env)
            if process is not None:
                return process
        command = module_command(python, "airflow_hops.ml", spec_path)
        return StepProcess.start(command, env=env, cwd=spec_path.parent)


def runtime_python(runtime: Path) -> Path:
    """Returns the Python of a runtime environment.

    Raises:
        BadInput: it does not exist, its installation did not finish, or its pins are outdated.
    """
    python = runtime / "bin" / "python"
    if not python.exists():
        raise BadInput(
            f"runtime environment {str(runtime)!r}: it has no bin/python; make it with "
            f"'airflow hops runtime create {runtime}', or name another in the connection's field 'runtime' or in "
            "[hops] runtime"
        )
    base = base_of(runtime)
    for folder in (base, runtime):  # a named environment needs a usable base
        state = environment_state(base, pins_fingerprint(base)) if folder == base else named_state(folder)
        if state.name in ("absent", "unfinished", "stale"):
            name = environment_name(folder)
            raise BadInput(
                f"runtime environment {str(folder)!r}: {state.detail}; run 'airflow hops runtime create {base}"
                f"{f' --name {name}' if name else ''}'"
            )
    return python


def runtime_variables(runtime: Path, code_paths: Sequence[str] = ()) -> dict[str, str]:
    """Returns the variables of this process for one of the runtime, without those that would mix the environments.

    The runtime's ``bin`` comes first on ``PATH``; the folders of user code come after the package.
    """
    # Steps must not get Airflow's secrets and settings, another Python's paths, nor the id of a step around them.
    dropped = ("AIRFLOW_", "_AIRFLOW", "PYTHON", "VIRTUAL_ENV", "SPARK_", STEP_ID_VARIABLE)
    env = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    programs = dict.fromkeys([str(runtime / "bin"), str(base_of(runtime) / "bin"), env.get("PATH", os.defpath)])
    # onnxruntime 1.31: its telemetry writes to a fixed name in the temporary folder, and follows another user's link.
    return {"ORT_DISABLE_TELEMETRY": "1", **with_package(env, code_paths), "PATH": ":".join(programs)}


def step_variables(runtime: Path, code_paths: Sequence[str] = ()) -> dict[str, str]:
    """Returns a step's variables: :func:`runtime_variables`, and settings of its worker, Java and libraries."""
    env = runtime_variables(runtime, code_paths)
    java = find_java(base_of(runtime), env)
    if java is not None:
        env["JAVA_HOME"] = str(java.home)
    return {
        **env,
        WORKER_VARIABLE: own_identity(),
        "PYTHONUNBUFFERED": "1",
        "PYSPARK_PYTHON": str(runtime / "bin" / "python"),
        "PYSPARK_DRIVER_PYTHON": str(runtime / "bin" / "python"),
        # TensorFlow 2.16: logs alarming but harmless lines at import, as Google's clients do; real failures raise.
        "TF_CPP_MIN_LOG_LEVEL": env.get("TF_CPP_MIN_LOG_LEVEL", "3"),
        "PYTHONWARNINGS": "ignore::FutureWarning",
        "TF_ENABLE_ONEDNN_OPTS": env.get("TF_ENABLE_ONEDNN_OPTS", "0"),
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "GIT_PYTHON_REFRESH": "quiet",
    }
