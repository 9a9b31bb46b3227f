"""Gangs on hosts that are reached over SSH, and what happens to them; each scenario returns how it ended."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil

from airflow_hops.contract.artifacts import BadInput
from airflow_hops.contract.training import TrainingOptions
from airflow_hops.runtime.gang import Channel, LocalRanks, Placement, RankJob, run_gang
from airflow_hops.runtime.gang.agent import versions
from airflow_hops.runtime.gang.frames import GREETING, Frames
from airflow_hops.runtime.gang.remote import AgentLine, RemoteCrew
from airflow_hops.runtime.gang.ssh import SshRanks, SshSettings, parse_hosts
from airflow_hops.runtime.step.context import StepContext

TWO_HOSTS = "127.0.0.1:1,127.0.0.2:1"
SUPERVISOR = """
import json, sys
from host_checks import supervise
supervise(**json.loads(sys.argv[1]))
"""
HIDDEN = """
import os, pathlib, sys, time
if os.fork():
    os._exit(0)
os.setsid()
pathlib.Path(sys.argv[1], f"pid-{os.getpid()}").touch()
time.sleep(300)
"""


def run_all(context: StepContext, *, ssh: dict[str, Any], servers: list[dict[str, Any]]) -> dict[str, Any]:
    """Runs every scenario on the hosts of one server; ``servers`` is of another, which does not survive."""
    silent = {name: Scenario(context, ssh, name) for name in ("agent_stopped", "supervisor_stopped")}
    waiting = [threading.Thread(target=scenario.run) for scenario in silent.values()]
    deaf: dict[str, Any] = {}
    waiting.append(threading.Thread(target=_send_to_the_deaf, args=(context, deaf)))
    for thread in waiting:
        thread.start()
    outcomes = {}
    for name in ("fine", "killed", "bad_input", "hangs", "agent_killed", "supervisor_killed"):
        outcomes[name] = Scenario(context, ssh, name).run()
    doomed = servers[0]
    outcomes["server_killed"] = Scenario(context, doomed["ssh"], "server_killed", server=doomed["pid"]).run()
    for thread in waiting:
        thread.join()
    return {**outcomes, **{name: scenario.outcome for name, scenario in silent.items()}, "deaf": deaf}


def _send_to_the_deaf(context: StepContext, outcome: dict[str, Any]) -> None:
    """A host that stands still while it is sent more than its connection holds."""
    folder = context.scratch / "deaf"
    folder.mkdir()
    (folder / "large.bin").write_bytes(bytes(5_000_000))
    here, there = socket.socketpair()
    frames = Frames(there.fileno())
    frames.send_bytes(GREETING)
    frames.send({"type": "hello", "versions": versions()})
    line = AgentLine(
        host="deaf",
        frames=Frames(os.dup(here.fileno())),
        address="127.0.0.1",
        last_words=str,
        is_final=lambda: False,
        close=lambda: here.shutdown(socket.SHUT_RDWR),
    )
    try:
        RemoteCrew([Placement(0, 1, 0, 1, "deaf")], RankJob("host_checks:work", inputs={"large": folder}), {}, [line])
    except Exception as error:
        outcome.update(error=str(error), type=type(error).__name__)
    here.close()
    there.close()


class Scenario:
    """One gang: what it is asked to do follows from its name."""

    def __init__(self, context: StepContext, ssh: Mapping[str, Any], name: str, **params: Any) -> None:
        self._ssh, self._name = ssh, name
        self._folder = context.scratch / name
        self._folder.mkdir()
        (self._folder / "input").mkdir()
        (self._folder / "input" / "words.txt").write_text("from the supervisor")
        # What cannot be read is no file that could travel.
        os.mkfifo(self._folder / "input" / "pipe")
        (self._folder / "input" / ".#words.txt").symlink_to("somebody@somewhere:1")
        self._params = {"accident": name, "notes": str(self._folder), **params}
        self.outcome: dict[str, Any] = {}

    def run(self) -> dict[str, Any]:
        if self._name.startswith("supervisor"):
            self._run_supervisor()
        else:
            self._run_here()
        pids = {int(file.name.partition("-")[2]) for file in self._folder.glob("pid-*")}
        # What a kill has begun may take the kernel a moment.
        deadline = time.monotonic() + 5
        while (left := _alive(pids)) and time.monotonic() < deadline:
            time.sleep(0.05)
        scratch = {Path(file.read_text()) for file in self._folder.glob("scratch-*")}
        while any(path.exists() for path in scratch) and time.monotonic() < deadline:
            time.sleep(0.05)
        self.outcome.update(
            processes=len(pids), left=left, folders=len(scratch), folders_left=[str(p) for p in scratch if p.exists()]
        )
        return self.outcome

    def _run_here(self) -> None:
        hosts = {"fine": TWO_HOSTS, "killed": "127.0.0.2:2"}.get(self._name, "127.0.0.2:1")
        messages: list[Any] = []
        seen: list[Any] = []

        def on_message(rank: int, message: Mapping[str, Any]) -> None:
            messages.append([rank, dict(message)])
            if message["type"] == "note":
                seen.append(sorted(p.relative_to(output).as_posix() for p in output.rglob("*.txt")))
                (self._folder / f"seen-{message['value']}").touch()

        output = self._folder / "output"
        began = time.monotonic()
        try:
            stall_timeout_s = 3 if self._name == "hangs" else 60
            result = gang(
                hosts, self._ssh, self._folder, self._params, on_message=on_message, stall_timeout_s=stall_timeout_s
            )
            self.outcome = {"result": result}
        except Exception as error:
            self.outcome = {"error": str(error), "type": type(error).__name__}
        self.outcome.update(
            seconds=time.monotonic() - began,
            messages=messages,
            seen=seen,
            output={p.relative_to(output).as_posix(): p.stat().st_size for p in output.rglob("*") if p.is_file()},
            logs={path.name: path.read_text() for path in (self._folder / "logs").glob("*.log")},
        )

    def _run_supervisor(self) -> None:
        """In a process that something happens to when the ranks run."""
        import json

        arguments = {"ssh": self._ssh, "folder": str(self._folder), "params": self._params}
        supervisor = subprocess.Popen(
            [sys.executable, "-c", SUPERVISOR, json.dumps(arguments)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        try:
            while not len(list(self._folder.glob("pid-*"))) >= 5:
                assert supervisor.poll() is None
                time.sleep(0.05)
            happening = time.monotonic()
            supervisor.send_signal(signal.SIGSTOP if self._name == "supervisor_stopped" else signal.SIGKILL)
            pids = {int(file.name.partition("-")[2]) for file in self._folder.glob("pid-*")}
            while _alive(pids) and time.monotonic() - happening < 40:
                time.sleep(0.05)
            self.outcome = {"seconds": time.monotonic() - happening}
        finally:
            supervisor.kill()
            supervisor.wait()


def supervise(ssh: Mapping[str, Any], folder: str, params: Mapping[str, Any]) -> None:
    """Two ranks on one host, until somebody ends this process."""
    gang("127.0.0.1:2", ssh, Path(folder), params)


def fill_disk(context: StepContext, *, ssh: dict[str, Any], output: str) -> dict[str, Any]:
    """Rank 0 brings back more than the step's disk holds."""
    output_folder = Path(output) / "output"
    (context.scratch / "input").mkdir()
    params = {"accident": "full_disk", "notes": str(context.scratch)}
    try:
        gang("127.0.0.2:1", ssh, context.scratch, params, output=output_folder)
        error = None
    except Exception as found:
        error = f"{type(found).__name__}: {found}"
    pids = {int(file.name.partition("-")[2]) for file in context.scratch.glob("pid-*")}
    deadline = time.monotonic() + 5
    while _alive(pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    return {
        "error": error,
        "processes": len(pids),
        "left": _alive(pids),
        "files": [p.name for p in output_folder.iterdir()],
    }


def gang(
    hosts: str,
    ssh: Mapping[str, Any],
    folder: Path,
    params: Mapping[str, Any],
    output: Path | None = None,
    **kwargs: Any,
) -> list[Any]:
    """Runs :func:`work` on all slots of the hosts."""
    found = parse_hosts(hosts)
    job = RankJob(
        "host_checks:work",
        params,
        code_paths=(str(Path(__file__).parent),),
        inputs={"words": folder / "input"},
        output=output or folder / "output",
    )
    launcher = SshRanks(found, SshSettings(**ssh))
    return run_gang(job, sum(h.slots for h in found), logs=folder / "logs", launcher=launcher, **kwargs)


def work(
    placement: Placement, channel: Channel, *, folders: Mapping[str, Path], accident: str, notes: str, server: int = 0
) -> Any:
    """What each rank does; then something happens."""
    noted = Path(notes)
    (noted / f"scratch-{placement.rank}").write_text(str(folders["output"].parent))
    # A process of the rank's that hides: it has left its session, its parent, and its environment.
    subprocess.run([sys.executable, "-c", HIDDEN, notes], env={}, check=True)
    (noted / f"pid-{os.getpid()}").touch()
    (noted / f"pid-{os.getppid()}").touch()
    while len(list(noted.glob("pid-*"))) < 3:
        time.sleep(0.05)
    channel.send("alive", where="its first steps")
    time.sleep(0.5)  # until it has been heard
    accidents: dict[str, Callable[[], Any]] = {
        "fine": lambda: _exchange(placement, channel, folders, noted),
        "killed": lambda: _kill_rank_1(placement),
        "bad_input": _raise_bad_input,
        "full_disk": lambda: _write_much(channel, folders["output"]),
        "agent_killed": lambda: os.kill(os.getppid(), signal.SIGKILL),
        "agent_stopped": lambda: _sleep(os.kill(os.getppid(), signal.SIGSTOP)),
        "server_killed": lambda: _sleep(os.kill(server, signal.SIGKILL)),
    }
    return accidents.get(accident, _sleep)()


def _exchange(placement: Placement, channel: Channel, folders: Mapping[str, Path], noted: Path) -> dict[str, Any]:
    import horovod.tensorflow as hvd
    import tensorflow as tf

    hvd.init()
    print(f"rank {placement.rank} says hello")
    output = folders["output"]
    if placement.rank == 0:
        for name in ("first", "second"):
            (output / name).mkdir()
            (output / name / "state.txt").write_text(name)
            channel.bring_back(name)
            channel.send("note", value=name)
            while not (noted / f"seen-{name}").exists():  # what is gone before it has been read is not sent
                time.sleep(0.02)
        (output / "first" / "state.txt").unlink()
        (output / "first").rmdir()
        (output / "second" / "state.txt").write_text("changed")
        (output / "large.bin").write_bytes(b"x" * 3_000_001)
        (output / "empty.bin").touch()
    return {
        "total": float(hvd.allreduce(tf.constant(placement.rank + 1.0), op=hvd.Sum)),
        "cross_size": hvd.cross_size(),
        "words": (folders["words"] / "words.txt").read_text(),
        "inputs": sorted(path.name for path in folders["words"].iterdir()),
        "interface": os.environ["HOROVOD_GLOO_IFACE"],
        "elsewhere": str(output.parent) != str(folders.get("notes")),
    }


def _kill_rank_1(placement: Placement) -> None:
    if placement.rank == 1:
        print("rank 1 is about to have an accident", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    _sleep()


def _raise_bad_input() -> None:
    raise BadInput("words.txt: column 'x' is missing")


def _write_much(channel: Channel, output: Path) -> None:
    (output / "checkpoint").mkdir()
    (output / "checkpoint" / "weights").write_bytes(b"x" * 3_000_000)
    channel.bring_back("checkpoint")
    _sleep()


def _sleep(_: Any = None) -> None:
    time.sleep(300)


def _alive(pids: set[int]) -> list[int]:
    found = []
    for pid in sorted(pids):
        try:
            if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                found.append(pid)
        except psutil.NoSuchProcess:
            pass
    return found


def refuse(context: StepContext, *, ssh: dict[str, Any], others: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Hosts that cannot be used, by other settings; each error, and the seconds until it came."""
    cases: dict[str, Callable[[], Any]] = {
        name: lambda changes=changes: _try(context, {**ssh, **changes}) for name, changes in others.items()
    }
    path = os.environ["PATH"]
    outcomes = {}
    for name, case in cases.items():
        began = time.monotonic()
        try:
            os.environ["PATH"] = "/nowhere" if name == "no ssh" else path
            outcomes[name] = {"result": repr(case())}
        except Exception as error:
            outcomes[name] = {"error": str(error), "type": type(error).__name__}
        finally:
            os.environ["PATH"] = path
        outcomes[name]["seconds"] = time.monotonic() - began
    return outcomes


def _try(context: StepContext, ssh: dict[str, Any]) -> Any:
    folder = context.scratch / "refused"
    (folder / "input").mkdir(parents=True, exist_ok=True)
    hosts = ssh.pop("hosts", TWO_HOSTS)
    return gang(hosts, ssh, folder, {"accident": "fine", "notes": str(folder)})


def train_on_both(context: StepContext, *, ssh: dict[str, Any]) -> dict[str, Any]:
    """The same training on this machine's ranks, and on two hosts."""
    from airflow_hops.runtime.train import Training, train_model

    found = {}
    launchers = {"local": LocalRanks(2), "ssh": SshRanks(parse_hosts(TWO_HOSTS), SshSettings(**ssh))}
    for name, launcher in launchers.items():
        output = context.scratch / name
        output.mkdir()
        checkpoints: list[Any] = []

        def on_message(
            rank: int, message: Mapping[str, Any], output: Path = output, checkpoints: list[Any] = checkpoints
        ) -> None:
            if message["type"] == "checkpoint":
                checkpoints.append([message["name"], (output / "checkpoints" / message["name"]).is_dir()])

        training = Training(
            examples=context.local("examples"),
            output=output,
            options=TrainingOptions(train="training_functions:train", params={"epochs": 4}),
            launcher=launcher,
            code_paths=(str(Path(__file__).parent),),
        )
        summary = train_model(training, on_message=on_message)
        files = sorted(p.relative_to(output).as_posix() for p in output.rglob("*") if p.is_file())
        found[name] = {"summary": summary, "files": files, "checkpoints": checkpoints}
    return found
