"""Steps that behave, and steps that misbehave; they run in the runtime environment."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any


def say(context: Any, heard: str | None = None) -> dict[str, Any]:
    """Speaks in every way that a step can; after the first line, waits until who has heard it writes a file."""
    log = logging.getLogger("somewhere.deep")
    print("a plain line")
    deadline = time.monotonic() + 600
    while heard and not Path(heard).exists():
        if time.monotonic() > deadline:
            raise TimeoutError("nobody has heard the first line")
        time.sleep(0.05)
    log.warning("a warning")
    log.error("an error\nof two lines")
    log.debug("nobody asked for this")
    context.progress(0.25, "a quarter", {"loss": 0.5})
    context.progress(7.0, "more than all")
    print("to the other stream", file=sys.stderr)
    return {"python": sys.executable, "scratch": str(context.scratch), "cwd": str(Path.cwd())}


def look_around(context: Any) -> dict[str, Any]:
    """Describes the folder and environment of a step and its children."""
    folder = context.scratch.parent
    return {
        "services": dict(context.spec.services),
        "files": {path.name: path.read_bytes().decode(errors="replace") for path in folder.iterdir() if path.is_file()},
        "environment_of_a_child": subprocess.check_output(["env"], text=True),
        "own_environment": str(dict(os.environ)),
    }


def leave_files(context: Any, full: bool) -> Any:
    """Makes temporary files as libraries and this package do, and is killed, or finds no room."""
    import tempfile

    from airflow_hops.core.processes.temporary_folders import make_temporary_folder

    folders = tempfile.mkdtemp(), *(str(make_temporary_folder(kind)[0]) for kind in ("code", "kernel", "step"))
    if full:
        tempfile._candidate_tempdir_list = list  # type: ignore[attr-defined]  # as if none could be written
        tempfile.tempdir = None
        tempfile.mkdtemp()
    print("left", *folders, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


def raise_error(context: Any, kind: str) -> None:
    """Raises by name."""
    from airflow_hops.core.errors import BadInput, HopsError, MissingColumn, Preempted

    if kind == "NoSpace":
        raise OSError(28, "No space left on device", "/store/part-0.parquet")
    if kind == "long name":
        Path(context.scratch, "split" * 60).mkdir()
    if kind == "ModuleNotFoundError":
        import nowhere.to_be_found  # noqa: F401
    if kind == "of another process":
        raise HopsError("rank 1 failed: ModuleNotFoundError: No module named 'nowhere'\nThe last lines of its log: …")
    if kind == "no answer":
        import requests

        try:
            requests.get("http://127.0.0.1:1", timeout=5)
        except requests.RequestException as error:
            raise HopsError("MLflow does not answer") from error
    if kind == "no column":
        raise MissingColumn("flights.csv", "dest")
    if kind == "preempted":
        raise Preempted("the training was asked to end")
    errors = {"ValueError": ValueError, "BadInput": BadInput, "HopsError": HopsError, "SystemExit": SystemExit}
    raise errors[kind](f"this is a {kind}")


def exhaust_memory(context: Any) -> None:
    """Asks for more memory than it may have."""
    import resource

    limit = 512 << 20
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    bytearray(1 << 30)


def outgrow(context: Any, group: str) -> Any:
    """Asks for more memory than the kernel gives to a control group, with an output under way."""
    from pathlib import Path

    Path(group).write_text(str(os.getpid()))
    with context.output() as writer:
        (writer.path / "text.txt").write_text("half")
        taken = b"x" * (256 << 20)
        return writer.commit(properties={"size": len(taken)})


def end_without_result(context: Any) -> None:
    """Leaves through the back door."""
    for line in range(30):
        print("line", line)
    sys.stdout.flush()
    os._exit(3)


def return_value(context: Any) -> Any:
    """Returns what JSON has no word for."""
    return {1, 2}


def write(context: Any, text: str, end: int = 0) -> Any:
    """Writes an artifact, or half of one."""
    with context.output() as writer:
        (writer.path / "text.txt").write_text(text)
        (context.scratch / "scratch.bin").write_bytes(b"0" * 1000)
        if end:
            os.kill(os.getpid(), end)
        return writer.commit(metrics={"length": float(len(text))})


def hang(context: Any, folder: str) -> None:
    """Hangs with a family that does not want to end."""

    def stay(name: str) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        (Path(folder) / name).write_text(str(os.getpid()))
        while True:
            time.sleep(60)

    if os.fork() == 0:
        stay("fork")
    if os.fork() == 0:
        os.setsid()
        if os.fork() != 0:
            os._exit(0)
        _let_go_of_output()
        stay("daemon")
    if os.fork() == 0:
        os.setsid()
        subprocess.Popen(["sleep", "600"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        stay("session")
    print("hangs")
    stay("step")


def leave_behind(context: Any, folder: str) -> int:
    """Ends well, but leaves a daemon behind."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() != 0:
            os._exit(0)
        _let_go_of_output()
        (Path(folder) / "daemon").write_text(str(os.getpid()))
        time.sleep(600)
    while not (Path(folder) / "daemon").exists():
        time.sleep(0.01)
    return 1


def _let_go_of_output() -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
