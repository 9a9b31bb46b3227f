"""Runs recorded steps again: their parameters, code and launcher."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from airflow_hops.core.errors import BadInput
from airflow_hops.core.redaction import REDACTED
from airflow_hops.core.steps.run_record import FILE_PARAMS, RunRecord, read_code
from airflow_hops.core.store import ArtifactStore
from airflow_hops.runner.launchers.base import Launcher
from airflow_hops.runner.runtime import RuntimeHook


def unpack_code(store: ArtifactStore, record: RunRecord, folder: Path) -> tuple[str, ...]:
    """Writes a record's user code to a folder and returns its code paths, in their order.

    Raises:
        BadInput: the code was not stored, or is damaged.
    """
    if record.code_left_out:
        left = ", ".join(record.code_left_out[:5])
        raise BadInput(f"{left} of the run's code is not stored: it was too large, or a link out of the code")
    for name, content in read_code(store, record).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    paths = [folder / str(number) for number in range(record.code_paths)]
    for path in paths:
        path.mkdir(parents=True, exist_ok=True)
    return tuple(map(str, paths))


def recorded_params(record: RunRecord, code: Path) -> dict[str, Any]:
    """Returns the parameters for repeating a step; raises BadInput if a secret is unknown."""
    params = dict(record.params)
    missing = []
    for path in record.secrets:
        place, _, variable = path.rpartition("/")
        if place == "env" and variable in os.environ:
            params["env"] = {**params["env"], variable: os.environ[variable]}
        elif place == "training/env" and variable in os.environ:
            env = {**params["training"]["env"], variable: os.environ[variable]}
            params["training"] = {**params["training"], "env": env}
        else:
            missing.append(path)
    if missing:
        raise BadInput(
            f"the record has no secrets, and the run was given {', '.join(missing)}; set those of 'env' as variables "
            "of this environment; others cannot be set: credentials of sources belong in the workers' environment, "
            "where their libraries find them, such as AWS_SECRET_ACCESS_KEY"
        )
    for name in FILE_PARAMS:
        if record.script is not None and params.get(name) not in (None, record.script.partition("/")[2]):
            params[name] = str(code / record.script)  # it was an absolute path, or one with '..'
    return params


def launcher_of(hook: RuntimeHook, record: RunRecord) -> Launcher | None:
    """Returns the launcher that repeats a step: Spark's if it ran on Spark; None for this machine."""
    params = record.params
    if "conf" not in record.parts and params.get("engine") != "spark":
        follows = params.get("engine") == "auto" and not params.get("processes") and not params.get("source")
        return hook.cluster_launcher() if follows else None
    conf = json.loads(record.parts.get("conf", "{}"))
    if secrets := sorted(name for name, value in conf.items() if REDACTED in str(value)):
        raise BadInput(
            f"the record has no secrets, and conf had {', '.join(secrets)}; credentials belong in the Spark "
            f"connection {hook.settings.spark_conn_id!r}, not in conf: run the step again with them there"
        )
    return hook.make_launcher("spark", conn_id=hook.settings.spark_conn_id, conf=conf)
