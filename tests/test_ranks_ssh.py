"""Ranks on other hosts: the OpenSSH client, a server on two loopback addresses, and real Horovod ranks behind it."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.runtime
CHECKS = (str(Path(__file__).parent / "runtime_checks"),)
SCENARIOS = ("fine", "killed", "bad_input", "hangs", "agent_killed", "server_killed", "agent_stopped")


@pytest.fixture(scope="module")
def start_server(
    tmp_path_factory: pytest.TempPathFactory, runtime_python: Path
) -> Iterator[Callable[[], dict[str, Any]]]:
    """Starts SSH servers; each is its process id and the settings by which it is reached."""
    processes = []

    def start() -> dict[str, Any]:
        folder = tmp_path_factory.mktemp("ssh")
        process = subprocess.Popen([sys.executable, str(Path(__file__).parent / "ssh_server.py"), str(folder)])
        processes.append(process)
        deadline = time.monotonic() + 60
        while not (folder / "port").exists() and time.monotonic() < deadline:
            assert process.poll() is None
            time.sleep(0.05)
        ssh = {
            "port": int((folder / "port").read_text()),
            "key_file": str(folder / "client_key"),
            "config_file": str(folder / "config"),
            "python": str(runtime_python),
        }
        return {"pid": process.pid, "ssh": ssh, "folder": folder}

    yield start
    for process in processes:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def server(start_server: Any) -> dict[str, Any]:
    found: dict[str, Any] = start_server()
    return found


@pytest.fixture(scope="module")
def run(shared_run_step: Any, warm_launcher: Any) -> Any:
    def run(entry: str, **kwargs: Any) -> Any:
        return shared_run_step(entry, code_paths=CHECKS, launcher=warm_launcher, **kwargs)

    return run


@pytest.fixture(scope="module")
def gangs(run: Any, server: dict[str, Any], start_server: Any) -> Any:
    doomed = start_server()
    servers = [{"pid": doomed["pid"], "ssh": doomed["ssh"]}]
    return run("host_checks:run_all", params={"ssh": server["ssh"], "servers": servers})


def test_ranks_of_two_hosts_meet_whatever_the_login_prints(gangs: Any) -> None:
    ranks = gangs["fine"]["result"]
    assert [rank["total"] for rank in ranks] == [3.0, 3.0]
    assert [rank["cross_size"] for rank in ranks] == [2, 2]
    assert [rank["interface"] for rank in ranks] == ["lo", "lo"]
    assert "rank 1 says hello" in gangs["fine"]["logs"]["rank-1.log"]


def test_inputs_travel_to_every_host(gangs: Any) -> None:
    assert [rank["words"] for rank in gangs["fine"]["result"]] == ["from the supervisor"] * 2
    assert [rank["inputs"] for rank in gangs["fine"]["result"]] == [["words.txt"]] * 2


def test_a_host_that_stands_still_while_it_is_sent_files_is_given_up(gangs: Any) -> None:
    expected = "no agent could be started on host deaf: nothing was heard for 15 s"
    assert gangs["deaf"] == {"type": "HopsError", "error": expected}


def test_files_come_back_before_the_message_that_follows_them(gangs: Any) -> None:
    first, second = map(set, gangs["fine"]["seen"])
    assert "first/state.txt" in first
    assert {"first/state.txt", "second/state.txt"} <= second


def test_at_the_end_the_output_is_what_rank_0_has_left(gangs: Any) -> None:
    assert gangs["fine"]["output"] == {"second/state.txt": len("changed"), "large.bin": 3_000_001, "empty.bin": 0}


@pytest.mark.parametrize(
    ("scenario", "type_", "expected"),
    [
        ("killed", "HopsError", "rank 1 of 2 on 127.0.0.2 was ended by SIGKILL"),
        ("bad_input", "BadInput", "words.txt: column 'x' is missing (rank 0 of 1 on 127.0.0.2"),
        ("agent_killed", "HopsError", "rank 0 of 1 on 127.0.0.2 was ended by the loss of its host"),
        ("server_killed", "HopsError", "rank 0 of 1 on 127.0.0.2 was ended by the loss of its host"),
        ("agent_stopped", "HopsError", "rank 0 of 1 on 127.0.0.2 was ended by the loss of its host"),
    ],
)
def test_what_happens_to_a_rank_is_told_with_its_host(gangs: Any, scenario: str, type_: str, expected: str) -> None:
    outcome = gangs[scenario]
    assert (outcome["type"], expected in outcome["error"]) == (type_, True), outcome["error"]
    assert "after its first steps; all ranks were ended" in outcome["error"]


def test_the_last_words_of_a_lost_host_are_quoted(gangs: Any) -> None:
    assert "the agent was ended by SIGKILL" in gangs["agent_killed"]["error"]
    assert "127.0.0.2: the connection has ended" in gangs["server_killed"]["error"]
    assert "127.0.0.2: nothing was heard for 15 s" in gangs["agent_stopped"]["error"]


@pytest.mark.parametrize("scenario", [*SCENARIOS, "supervisor_killed", "supervisor_stopped"])
def test_nothing_is_left_on_any_host(gangs: Any, scenario: str) -> None:
    outcome = gangs[scenario]
    assert outcome["processes"] >= 3  # the agent, a rank, and one that it hid
    assert (outcome["left"], outcome["folders_left"]) == ([], [])
    assert outcome["folders"] >= 1


def test_ranks_end_with_their_supervisor(gangs: Any) -> None:
    assert gangs["supervisor_killed"]["seconds"] < 5
    assert gangs["supervisor_stopped"]["seconds"] < 30


def test_a_hanging_rank_says_where_it_stands_from_its_host(gangs: Any) -> None:
    error = gangs["hangs"]["error"]
    assert "rank 0 of 1 on 127.0.0.2 made no progress for 3 s (stall_timeout_s) after its first steps" in error
    assert "in _sleep" in error


def test_a_full_disk_where_files_come_back_ends_the_gang(run: Any, server: dict[str, Any], small_folder: Path) -> None:
    found = run("host_checks:fill_disk", params={"ssh": server["ssh"], "output": str(small_folder)})
    assert found["error"].startswith("HopsError: 127.0.0.2: ")
    assert "No space left on device" in found["error"]
    assert (found["processes"], found["left"], found["files"]) == (3, [], [])


@pytest.fixture(scope="module")
def refused(run: Any, server: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder, port = server["folder"], server["ssh"]["port"]
    strangers = tmp_path_factory.mktemp("strangers")
    (strangers / "config").write_text(f"UserKnownHostsFile {strangers / 'none'}\nStrictHostKeyChecking yes\n")
    # A proxy of its own knows the host; this machine does not.
    (strangers / "behind").write_text(
        f"Include {folder / 'config'}\nHost behind\n HostName behind.invalid\n HostKeyAlias [127.0.0.1]:{port}\n"
        f" ProxyCommand {sys.executable} {Path(__file__).parent / 'ssh_proxy.py'} 127.0.0.1 {port}\n"
    )
    others = {
        "behind a proxy": {"config_file": str(strangers / "behind"), "hosts": "behind:1"},
        "unreachable": {"port": 1, "hosts": "127.0.0.2:1"},
        "unknown name": {"hosts": "no-such-host.invalid:1"},
        "refused key": {"key_file": str(folder / "other_key")},
        "unknown host": {"config_file": str(strangers / "config")},
        "no python": {"python": "/nowhere/bin/python"},
        "other environment": {"python": sys.executable},
        "no ssh": {},
    }
    return run("host_checks:refuse", params={"ssh": server["ssh"], "others": others})


@pytest.mark.parametrize(
    ("case", "type_", "expected"),
    [
        ("unreachable", "HopsError", r"on host 127\.0\.0\.2: .*\n.*Connection refused"),
        ("unknown name", "HopsError", r"host no-such-host\.invalid cannot be reached: .*not resolve"),
        ("behind a proxy", "BadInput", r"host behind: by which IPv4 address .* the connection's field 'address'"),
        ("refused key", "BadInput", r"on host 127\.0\.0\.\d: (.|\n)*Permission denied"),
        ("unknown host", "BadInput", r"on host 127\.0\.0\.\d: (.|\n)*Host key verification failed"),
        ("no python", "BadInput", r"on host 127\.0\.0\.\d: (.|\n)*/nowhere/bin/python: (.|\n)*not found"),
        ("other environment", "BadInput", r"127\.0\.0\.1: its .* tensorflow not at all, expected 2\.16\.2"),
        ("no ssh", "BadInput", r"there is no SSH client on this machine"),
    ],
)
def test_hosts_that_cannot_be_used_are_named_at_once(refused: Any, case: str, type_: str, expected: str) -> None:
    outcome = refused[case]
    assert outcome["type"] == type_, outcome
    assert re.search(expected, outcome["error"]), outcome["error"]
    assert outcome["seconds"] < 25


def test_training_on_two_hosts_makes_the_model_of_local_ranks(run: Any, server: dict[str, Any]) -> None:
    from airflow_hops.contract.artifacts import Artifact

    parents = {role: Artifact(f"file:///store/{role}", role, role) for role in ("statistics", "schema")}
    rows = {"train": [700, 3, 298], "eval": [201]}
    examples = run("transformed_examples:write", params={"rows": rows}, kind="transformed_examples", inputs=parents)
    found = run("host_checks:train_on_both", params={"ssh": server["ssh"]}, inputs={"examples": examples})
    local, remote = found["local"], found["ssh"]
    assert remote["summary"]["hosts"] == ["127.0.0.1", "127.0.0.2"]
    assert remote["summary"]["checksum"] == local["summary"]["checksum"]
    assert [re.sub(r"\d{6,}.*", "", f) for f in remote["files"]] == [re.sub(r"\d{6,}.*", "", f) for f in local["files"]]
    assert [name for name, _ in remote["checkpoints"]] == [name for name, _ in local["checkpoints"]]
    assert [came for _, came in remote["checkpoints"]] == [True] * 4
