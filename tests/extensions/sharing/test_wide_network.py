"""Three organisations in network namespaces, with delay, loss and a bottleneck."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from waiting import wait_for

from airflow_hops.extensions.sharing.core.search import search
from tests.extensions.sharing import tcp_flow
from tests.extensions.sharing.organisations import Organisation, random_files, same_files
from tests.extensions.sharing.slow_network import Link, missing, slow_network

pytestmark = [pytest.mark.runtime, pytest.mark.server]
REF = "north/numbers@1"
MBIT_S = 24.0
BOTTLENECK = Link(down_mbit_s=MBIT_S, delay_ms=15, buffer_ms=250)
Wide = Callable[..., list[Organisation]]


@pytest.fixture
def wide(tmp_path: Path, sharing_runtime: Path) -> Iterator[Wide]:
    """Makes organisations that trust each other, one a host, by name and link; all share with ``settings``."""
    made: list[Organisation] = []
    networks = []
    if (lacks := missing()) is not None:
        pytest.skip(f"this machine lacks {lacks}")

    def make(settings: Any = None, **links: Link) -> list[Organisation]:
        network = slow_network(**links)
        networks.append(network)
        for name, (namespace, address) in network.__enter__().items():
            (tmp_path / name / "store").mkdir(parents=True)
            more = {"seeding": "always", **(settings or {})}
            home = tmp_path / name
            made.append(Organisation(name, home, address, sharing_runtime, namespace=namespace, **more))
        for one in made:
            one.trust(*(other for other in made if other is not one))
        return made

    yield make
    for of in made:
        of.end()
    for network in networks:
        network.__exit__(None, None, None)


def fetch_from_two(
    north: Organisation, east: Organisation, south: Organisation, files: Path, timeout_s: float = 120
) -> None:
    """Has ``south`` fetch from two seeds, one of which is killed on the way."""
    north.share(files)
    north.start()
    east.start()
    east.ask(REF)
    size = east.wait_until(REF, "seeding", timeout_s=timeout_s).size_bytes
    south.start()
    south.ask(REF)

    def from_both() -> bool:
        transfer = south.transfer(REF)
        whose = {peer.organisation for peer in transfer.peers if peer.down_bytes_s > 0} if transfer else set()
        return transfer is not None and transfer.done_bytes > size / 4 and whose == {"north", "east"}

    wait_for(from_both, south.log.read_text, timeout_s)
    north.kill()
    assert south.transfer(REF).done_bytes < size  # type: ignore[union-attr]
    south.wait_until(REF, "seeding", timeout_s=timeout_s)
    assert same_files(south.fetched(REF), files)


def test_two_seeds_of_which_one_is_killed(wide: Wide, tmp_path: Path) -> None:
    link = Link(down_mbit_s=MBIT_S, delay_ms=15, buffer_ms=250, loss=0.0005)
    north, east, south = wide(north=Link(), east=Link(), south=link)
    fetch_from_two(north, east, south, random_files(tmp_path / "files", a=12_000_000, b=8_000_000))


@pytest.mark.faults
def test_a_gigabyte_from_two_seeds_of_which_one_is_killed(wide: Wide, tmp_path: Path) -> None:
    link = Link(down_mbit_s=80, delay_ms=15, buffer_ms=250, loss=0.0001)
    north, east, south = wide(north=Link(), east=Link(down_mbit_s=200), south=link)
    files = random_files(tmp_path / "files", **{f"part-{number}": 125_000_000 for number in range(8)})
    fetch_from_two(north, east, south, files, timeout_s=900)


def test_a_search_covers_three_catalogues(wide: Wide, tmp_path: Path) -> None:
    north, east, south = wide(north=Link(), east=Link(), south=BOTTLENECK)
    for number, of in enumerate((north, east, south)):
        files = random_files(tmp_path / of.name / "files", a=1000 + number)
        features = {"table.delay": {"type": "FLOAT", "mean": 10.0 * number, "missing": 0.0}}
        of.share(files, rows=number, description=f"Delays of the {of.name}.", features=features)
        of.start()
    for of, others in ((north, "east south"), (east, "north south"), (south, "east north")):
        names = wait_for(lambda of=of: len(search(of.records.datasets(), "delays")) == 2)  # type: ignore[misc]
        assert names
        assert [each.organisation for each in search(of.records.datasets(), "table.delay")] == others.split()
    assert [each.organisation for each in search(south.records.datasets(), "delay.mean>5 rows<3 cc0")] == ["east"]
    assert [str(each.ref) for each in search(north.records.datasets(), "SOUTH")] == ["south/numbers@1"]


def transfer_rate(of: Organisation, seconds: float) -> float:
    """Bytes per second of a transfer, over some seconds."""
    first, began = of.transfer(REF), time.monotonic()
    time.sleep(seconds)
    last = of.transfer(REF)
    assert first is not None and last is not None and last.state == "downloading", last
    return (last.done_bytes - first.done_bytes) / (time.monotonic() - began)


def tcp_rate(of: Organisation, server: str, seconds: float) -> float:
    command = [sys.executable, tcp_flow.__file__, "receive", server, str(seconds)]
    process = of.run(command, stdout=subprocess.PIPE)
    return float(process.communicate()[0])


def test_transfer_fills_the_bottleneck_and_yields_to_tcp(wide: Wide, tmp_path: Path) -> None:
    north, east, south = wide(north=Link(), east=Link(), south=BOTTLENECK)
    north.share(random_files(tmp_path / "files", a=200_000_000))
    east.run([sys.executable, tcp_flow.__file__, "send", east.address])
    north.start()
    south.start()
    seconds = float(os.environ.get("HOPS_SHARING_SECONDS", "14"))
    solo = tcp_rate(south, east.address, seconds)
    south.ask(REF)
    wait_for(lambda: (t := south.transfer(REF)) and t.done_bytes > 3_000_000, south.log.read_text, 60)
    alone = transfer_rate(south, seconds)
    beside = tcp_rate(south, east.address, seconds)
    print(f"Mbit/s: TCP alone {solo / 125e3:.1f}, beside {beside / 125e3:.1f}; transfer alone {alone / 125e3:.1f}")
    assert alone >= 0.8 * MBIT_S * 125_000
    assert beside >= 0.9 * solo
