"""Ranks on other hosts: the OpenSSH client, a server on two loopback addresses, and real ranks behind it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from waiting import is_gone, wait_for

from airflow_hops.core.errors import BadInput, HopsError
from airflow_hops.core.store import ArtifactStore
from airflow_hops.core.training.options import TrainingOptions
from airflow_hops.core.training.rank_places import RankConnection
from airflow_hops.extensions.ranks.ml import remote
from airflow_hops.extensions.ranks.ml.agent import versions
from airflow_hops.extensions.ranks.ml.frames import GREETING, Frames
from airflow_hops.extensions.ranks.ml.remote import AgentLine, RemoteCrew
from airflow_hops.extensions.ranks.ml.ssh import SshRanks, SshSettings, parse_hosts
from airflow_hops.ml.training.gang import LocalRanks, Placement, RankJob, rendezvous, run_gang
from airflow_hops.ml.training.stage import Training, train_model
from airflow_hops.testing.rank_places import RankPlaceContract
from tests.extensions.ranks.ssh_servers import TESTS, SshServer
from tests.ml.waiting_ranks import forkserver

pytestmark = pytest.mark.server

AIRFLOW_PYTHON = TESTS.parents[2] / ".venv" / "bin" / "python"
TWO_HOSTS = "127.0.0.1:1,127.0.0.2:1"


def settings(server: SshServer) -> SshSettings:
    return SshSettings(port=server.port, key_file=server.key_file, config_file=server.config_file)


@pytest.fixture(scope="module")
def server(start_ssh_server: Any) -> SshServer:
    return start_ssh_server()


class TestSshPlace(RankPlaceContract):
    name = "ssh"

    @pytest.fixture
    def connection(self, server: SshServer) -> RankConnection:
        files = {"key_file": server.key_file, "config_file": server.config_file}
        return RankConnection("gpus", port=server.port, extra={"hosts": TWO_HOSTS, **files})

    @pytest.fixture(autouse=True)
    def empty_horovod(self, run: Any, tmp_path: Path) -> None:
        """Agents import an empty Horovod, in none of TensorFlow's seconds."""
        for name in ("__init__", "tensorflow"):
            (tmp_path / "code" / "horovod").mkdir(exist_ok=True)
            (tmp_path / "code" / "horovod" / f"{name}.py").touch()


@dataclass
class Gang:
    """A gang of ranks behind SSH, and how it ended: with a result, or an error."""

    folder: Path
    ssh: SshSettings
    code: tuple[str, ...]
    result: list[Any] = field(default_factory=list)
    error: Exception | None = None
    seen: list[list[str]] = field(default_factory=list)

    def run(
        self,
        accident: str,
        hosts: str = "127.0.0.2:1",
        *,
        stall_timeout_s: int = 60,
        output: Path | None = None,
        **params: Any,
    ) -> Gang:
        inputs, output = self.folder / "input", output or self.folder / "output"
        inputs.mkdir()
        (inputs / "words.txt").write_text("from the supervisor")
        # What cannot be read is no file that could travel.
        os.mkfifo(inputs / "pipe")
        (inputs / ".#words.txt").symlink_to("somebody@somewhere:1")

        def on_message(rank: int, message: Mapping[str, Any]) -> None:
            if message["type"] == "note":
                if not message["value"].startswith("begun"):
                    self.seen.append(sorted(p.relative_to(output).as_posix() for p in output.rglob("*.txt")))
                (self.folder / f"seen-{message['value']}").touch()

        params = {"accident": accident, "notes": str(self.folder), **params}
        job = RankJob("rank_work:work", params, code_paths=self.code, inputs={"words": inputs}, output=output)
        result = parse_hosts(hosts)
        try:
            self.result = run_gang(
                job,
                sum(result.values()),
                logs=self.folder / "logs",
                launcher=SshRanks(result, self.ssh),
                on_message=on_message,
                stall_timeout_s=stall_timeout_s,
            )
        except Exception as error:
            self.error = error
        return self

    @property
    def pids(self) -> set[int]:
        """Processes of agents and ranks, and those that hide."""
        return {int(file.name.partition("-")[2]) for file in self.folder.glob("pid-*")}

    def leaves_nothing(self) -> Gang:
        """Asserts that it ran, and that nothing of it is left on any host; what a kill has begun takes a moment."""
        assert len(self.pids) >= 3, self.error  # the agent, a rank, and one that it hid
        scratch = [Path(file.read_text()) for file in self.folder.glob("scratch-*")]
        assert scratch
        wait_for(lambda: not alive(self.pids) and not any(folder.exists() for folder in scratch), "all is gone", 5)
        return self


def alive(pids: set[int]) -> list[int]:
    return [pid for pid in pids if not is_gone(pid)]


@pytest.fixture(scope="module")
def make_gang(
    server: SshServer, tmp_path_factory: pytest.TempPathFactory, rank_code: tuple[str, str]
) -> Callable[..., Gang]:
    def make(ssh: SshSettings | None = None) -> Gang:
        return Gang(tmp_path_factory.mktemp("gang"), ssh or settings(server), rank_code)

    return make


@pytest.fixture(scope="module")
def fine(make_gang: Any) -> Gang:
    gang = make_gang().run("none", TWO_HOSTS)
    assert gang.error is None
    return gang


def test_ranks_of_other_hosts_import_code_of_a_packaged_dag(
    server: SshServer, tmp_path: Path, rank_code: tuple[str, str]
) -> None:
    archive = Path(shutil.make_archive(str(tmp_path / "dag"), "zip", rank_code[0]))
    gang = Gang(tmp_path, settings(server), (str(archive), rank_code[1])).run("none")
    assert gang.error is None and [rank["cross_size"] for rank in gang.result] == ["1"]


def test_ranks_of_two_hosts_exchange_files_behind_login_chatter(fine: Gang) -> None:
    assert [rank["cross_size"] for rank in fine.result] == ["2", "2"]
    assert [rank["interface"] for rank in fine.result] == ["lo", "lo"]
    assert "rank 1 says hello" in (fine.folder / "logs" / "rank-1.log").read_text()
    assert [rank["words"] for rank in fine.result] == ["from the supervisor"] * 2
    assert [rank["inputs"] for rank in fine.result] == [["words.txt"]] * 2
    first, second = map(set, fine.seen)  # files arrive before the next message
    assert "first/state.txt" in first
    assert {"first/state.txt", "second/state.txt"} <= second
    output = fine.folder / "output"  # at the end it is what rank 0 has left
    assert {p.relative_to(output).as_posix(): p.stat().st_size for p in output.rglob("*") if p.is_file()} == {
        "second/state.txt": len("changed"),
        "large.bin": 3_000_001,
        "empty.bin": 0,
    }
    fine.leaves_nothing()


@pytest.mark.parametrize(
    ("accident", "hosts", "expected"),
    [
        ("rank killed", "127.0.0.2:2", ["rank 1 of 2 on 127.0.0.2 was ended by SIGKILL"]),
        ("bad input", "127.0.0.2:1", ["words.txt: column 'x' is missing (rank 0 of 1 on 127.0.0.2"]),
        (
            "agent killed",
            "127.0.0.2:1",
            ["rank 0 of 1 on 127.0.0.2 was ended by the loss of its host", "the agent was ended by SIGKILL"],
        ),
    ],
)
def test_failure_names_the_host(make_gang: Any, accident: str, hosts: str, expected: list[str]) -> None:
    gang = make_gang().run(accident, hosts).leaves_nothing()
    assert isinstance(gang.error, BadInput) == (accident == "bad input")
    for words in [*expected, "after its first steps; all ranks were ended"]:
        assert words in str(gang.error)


def test_drained_host_gives_notice_to_its_ranks(make_gang: Any) -> None:
    gang = make_gang().run("host drained", "127.0.0.2:2").leaves_nothing()
    assert (gang.result, gang.error) == ([True, True], None)


def test_closed_connection_ends_its_ranks(make_gang: Any, start_ssh_server: Any) -> None:
    doomed = start_ssh_server()
    gang = make_gang(settings(doomed)).run("server killed", server=doomed.process.pid).leaves_nothing()
    for words in (
        "rank 0 of 1 on 127.0.0.2 was ended by the loss of its host",
        "after its first steps; all ranks were ended",
        "127.0.0.2: the connection has ended",
    ):
        assert words in str(gang.error)


def test_hanging_remote_rank_reports_its_stack(make_gang: Any) -> None:
    error = str(make_gang().run("hangs", stall_timeout_s=3).leaves_nothing().error)
    assert "rank 0 of 1 on 127.0.0.2 made no progress for 3 s (stall_timeout_s) after its first steps" in error
    assert "in _sleep" in error


def test_full_disk_during_file_return_ends_the_gang(make_gang: Any, small_folder: Path) -> None:
    output = small_folder / "output"
    gang = make_gang().run("full disk", output=output).leaves_nothing()
    assert type(gang.error) is HopsError
    assert str(gang.error).startswith("127.0.0.2: ") and "No space left on device" in str(gang.error)
    assert list(output.iterdir()) == []


def end_supervisor(forking: Any, gang: Gang, how: signal.Signals, within_s: float) -> float:
    """Sends a signal to the process that watches a gang; seconds until its ranks have ended."""
    supervisor = forking.Process(target=gang.run, args=("hangs", "127.0.0.1:2"), kwargs={"stall_timeout_s": 15})
    supervisor.start()
    try:
        wait_for(lambda: len(gang.pids) >= 5, "the ranks run", 60)
        happening = time.monotonic()
        os.kill(supervisor.pid, how)
        wait_for(lambda: not alive(gang.pids), "the ranks have ended", within_s)
        return time.monotonic() - happening
    finally:
        supervisor.kill()
        supervisor.join()
        gang.leaves_nothing()


def test_ranks_end_with_their_supervisor(make_gang: Any) -> None:
    end_supervisor(forkserver(), make_gang(), signal.SIGKILL, within_s=5)


@pytest.mark.scheduled(part="clusters")
def test_ranks_outlive_a_stopped_supervisor_by_a_stall(make_gang: Any) -> None:
    assert end_supervisor(forkserver(), make_gang(), signal.SIGSTOP, within_s=50) > 15, "15 s longer than a stall"


def test_silent_host_counts_as_lost(make_gang: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "SILENCE_S", 2.0)
    gang = make_gang().run("agent stopped", stall_timeout_s=5).leaves_nothing()
    assert re.search(r"between 127\.0\.0\.2 and \S+ \(nothing was heard for \d+ s\), or a host", str(gang.error))
    assert "rank 0 of 1 on 127.0.0.2 made no progress for 5 s (stall_timeout_s) after its first" in str(gang.error)


def test_unresponsive_host_is_abandoned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that stands still while it is sent more than its connection holds."""
    monkeypatch.setattr(rendezvous, "SILENCE_S", 1.0)
    (tmp_path / "large.bin").write_bytes(bytes(5_000_000))
    here, there = socket.socketpair()
    with here, there:
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
        job = RankJob("rank_work:work", inputs={"large": tmp_path})
        with pytest.raises(HopsError, match=r"^no agent could be started on host deaf: nothing was heard for 1 s$"):
            RemoteCrew([Placement(0, 1, 0, 1, "deaf")], job, {}, [line])


@pytest.fixture(scope="module")
def strangers(server: SshServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with configurations of the SSH client that do not know the host, or know it by a proxy's name."""
    folder, port = tmp_path_factory.mktemp("strangers"), server.port
    (folder / "config").write_text(f"UserKnownHostsFile {folder / 'none'}\nStrictHostKeyChecking yes\n")
    # A proxy of its own knows the host; this machine does not.
    (folder / "behind").write_text(
        f"Include {server.folder / 'config'}\nHost behind\n HostName behind.invalid\n HostKeyAlias [127.0.0.1]:{port}\n"
        f" ProxyCommand {sys.executable} -S {TESTS / 'ssh_proxy.py'} 127.0.0.1 {port}\n"
    )
    return folder


BEHIND = {"config_file": "{strangers}/behind", "connect_timeout_s": 1}
ON_HOST = r"on host 127\.0\.0\.\d: (.|\n)*"
UNUSABLE: dict[str, tuple[str, dict[str, Any], type[Exception], str]] = {
    "unreachable": ("127.0.0.2:1", {"port": 1}, HopsError, r"on host 127\.0\.0\.2: .*\n.*Connection refused"),
    "unknown": ("no-such-host.invalid:1", {}, HopsError, r"no-such-host\.invalid cannot be reached: .*not resolve"),
    "proxy": ("behind:1", BEHIND, BadInput, r"host behind: cannot find the IPv4 address .* the connection's field '"),
    "key": (TWO_HOSTS, {"key_file": "{server}/other_key"}, BadInput, ON_HOST + "Permission denied"),
    "stranger": (TWO_HOSTS, {"config_file": "{strangers}/config"}, BadInput, ON_HOST + "Host key verification failed"),
    "no python": (TWO_HOSTS, {"python": "/nowhere/python"}, BadInput, ON_HOST + r"/nowhere/python: (.|\n)*not found"),
    "Airflow": (TWO_HOSTS, {"python": str(AIRFLOW_PYTHON)}, BadInput, r"127\.0\.0\.1: its .* tensorflow \(missing\), "),
}


@pytest.mark.parametrize("case", UNUSABLE)
def test_unusable_hosts_are_named_at_once(make_gang: Any, server: SshServer, strangers: Path, case: str) -> None:
    hosts, changes, type_, expected = UNUSABLE[case]
    places = {"strangers": strangers, "server": server.folder}
    changes = {name: v.format(**places) if isinstance(v, str) else v for name, v in changes.items()}
    gang = make_gang(replace(settings(server), **changes)).run("none", hosts)
    assert type(gang.error) is type_
    assert re.search(expected, str(gang.error)), gang.error


def test_missing_ssh_client_is_reported(make_gang: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    gang = make_gang().run("none")
    assert type(gang.error) is BadInput and "there is no SSH client on this machine" in str(gang.error)


def train(launcher: Any, examples: Path, output: Path) -> tuple[dict[str, Any], list[tuple[str, bool]]]:
    """Trains; the summary, and the checkpoints with whether they were there when they were told of."""
    import tensorflow as tf

    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False})  # as on the hosts
    checkpoints = []

    def on_message(rank: int, message: Mapping[str, Any]) -> None:
        if message["type"] == "checkpoint":
            checkpoints.append((message["name"], (output / "checkpoints" / message["name"]).is_dir()))

    training = Training(
        examples=examples,
        output=output,
        options=TrainingOptions(train="training_functions:train", params={"epochs": 1}, np=1),
        launcher=launcher,
        code_paths=(str(TESTS.parents[1] / "steps"),),
    )
    return train_model(training, on_message=on_message), checkpoints


def test_another_host_trains_like_this_one(
    server: SshServer, shared_store: ArtifactStore, write_examples: Any, own_process: Any, tmp_path: Path
) -> None:
    examples = shared_store.local(write_examples(train=[700, 3, 298], eval=[201]))
    launchers = {"local": LocalRanks(1), "ssh": SshRanks(parse_hosts("127.0.0.2:1"), settings(server))}
    files, summaries, checkpoints = {}, {}, {}
    for name, launcher in launchers.items():
        output = tmp_path / name
        output.mkdir()
        summaries[name], checkpoints[name] = own_process(train, launcher, examples, output)
        paths = sorted(p.relative_to(output).as_posix() for p in output.rglob("*") if p.is_file())
        files[name] = [re.sub(r"\d{6,}.*", "", path) for path in paths]
    assert summaries["ssh"]["hosts"] == ["127.0.0.2"]
    assert summaries["ssh"]["checksum"] == summaries["local"]["checksum"]
    assert files["ssh"] == files["local"]
    assert checkpoints["ssh"] == checkpoints["local"]
    assert [came for _, came in checkpoints["ssh"]] == [True]
