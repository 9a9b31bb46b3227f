"""TensorBoard of a training's event files, which ends with the process that started it."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import types
import warnings
from pathlib import Path

from airflow_hops.core.processes.lifetime import end_with
from airflow_hops.core.steps.protocol import WORKER_VARIABLE


def main(arguments: list[str] | None = None) -> int:
    """Serves a folder on a free port of the loopback interface, until the process is terminated."""
    parser = argparse.ArgumentParser(prog="python -m airflow_hops.ml.tracking.tensorboard", description=__doc__)
    parser.add_argument("--logdir", type=Path, required=True, help="folder of event files")
    args = parser.parse_args(arguments)
    end_with(os.environ.get(WORKER_VARIABLE, ""))

    warnings.filterwarnings("ignore", message="pkg_resources is deprecated")
    # TensorBoard 2.16: with this module, it reads event files without TensorFlow (tensorboard/compat/__init__.py): it
    # starts in one second instead of five, and takes a tenth of the memory.
    sys.modules["tensorboard.compat.notf"] = types.ModuleType("tensorboard.compat.notf")
    from tensorboard import default, program

    board = program.TensorBoard(plugins=default.get_plugins())
    board.configure(
        argv=[
            "tensorboard",
            f"--logdir={args.logdir}",
            "--host=127.0.0.1",
            "--port=0",
            "--reload_interval=2",
            # The fast loader is a separate process, which could be left behind.
            "--load_fast=false",
        ]
    )
    print(f"TensorBoard of {args.logdir}: {board.launch()}", flush=True)
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    ended.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
