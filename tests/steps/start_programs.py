"""Starts every program that the ML side starts, in the working directory that it was given; says how each fared."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from airflow_hops.core.errors import BadInput, HopsError
from airflow_hops.ml.infra_validate import throwaway_server
from airflow_hops.serving.capture.capture import Capture
from airflow_hops.serving.capture.options import CaptureOptions

_TIMEOUT_S = 600.0


def start_capture_writer(folder: Path) -> str:
    return "all is written" if Capture(CaptureOptions(str(folder))).close(_TIMEOUT_S) else "not all is written"


def start_model_server(folder: Path) -> str:
    (folder / "damaged").mkdir()
    (folder / "damaged" / "saved_model.pb").touch()
    with throwaway_server(folder / "damaged", folder / "server") as wait_until_available:
        try:
            wait_until_available()
        except BadInput:  # it runs, and refuses the model
            return "ready"
        except HopsError as error:
            return str(error)
    return "it found a model"


def main() -> None:
    programs: dict[str, Callable[[Path], str]] = {
        "capture writer": start_capture_writer,
        "model server": start_model_server,
    }
    results: dict[str, str] = {}
    stdout = os.dup(1)
    with tempfile.TemporaryDirectory() as scratch, tempfile.TemporaryFile() as output:
        folders = {name: Path(scratch) / name for name in programs}
        for folder in folders.values():
            folder.mkdir()
        os.dup2(output.fileno(), 1)
        with ThreadPoolExecutor() as pool:
            started = {name: pool.submit(start, folders[name]) for name, start in programs.items()}
        results = {name: future.result() for name, future in started.items()}
        os.dup2(stdout, 1)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
