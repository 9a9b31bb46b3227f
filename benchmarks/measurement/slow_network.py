"""Hosts in network namespaces, joined by slow links: a bottleneck with a buffer, delay and loss.

A process joins the hosts' TUN devices and passes packets on, late, or not at all. It does what ``tc netem`` does, also
where the kernel lacks that module. TCP in the namespaces uses CUBIC, the default of most systems.
"""

from __future__ import annotations

import contextlib
import fcntl
import heapq
import json
import os
import random
import select
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
_MTU = 1500


@dataclass(frozen=True)
class Link:
    """The link of a host to all others.

    Attributes:
        down_mbit_s: Rate to the host.
        up_mbit_s: Rate from the host.
        delay_ms: Delay in each direction.
        buffer_ms: How long a packet may wait before each rate; what would wait longer is dropped.
        loss: Share of packets to the host that are lost.
    """

    down_mbit_s: float = 1000.0
    up_mbit_s: float = 1000.0
    delay_ms: float = 10.0
    buffer_ms: float = 200.0
    loss: float = 0.0


def missing() -> str | None:
    """Returns what this machine lacks for namespaces with TUN devices, or None."""
    if os.geteuid() != 0:
        return "root, which network namespaces need"
    if not Path("/dev/net/tun").exists():
        return "/dev/net/tun"
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        subprocess.run(["ip", "netns", "add", "hops-probe"], check=True, capture_output=True)
        subprocess.run(["ip", "netns", "del", "hops-probe"], check=True)
        return None
    return "the right to make network namespaces (ip netns add)"


@contextlib.contextmanager
def slow_network(**links: Link) -> Iterator[dict[str, tuple[str, str]]]:
    """Makes a namespace for each host; yields namespace and address by the host's name."""
    hosts = {name: (f"hops-{os.getpid()}-{name}", f"10.77.0.{number + 1}") for number, name in enumerate(links)}
    config = [{"namespace": hosts[name][0], "address": hosts[name][1], **asdict(link)} for name, link in links.items()]
    relay = None
    try:
        for namespace, _ in hosts.values():
            _ip("netns", "add", namespace)
            _ip("-n", namespace, "link", "set", "lo", "up")
        relay = subprocess.Popen([sys.executable, __file__, json.dumps(config)], stdout=subprocess.PIPE)
        assert relay.stdout is not None and relay.stdout.readline() == b"ready\n"
        yield hosts
    finally:
        if relay is not None:
            relay.kill()
            relay.wait()
        for namespace, _ in hosts.values():
            subprocess.run(["ip", "netns", "del", namespace])


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


def _device(name: str, host: dict[str, Any]) -> int:
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack("16sH", name.encode(), _IFF_TUN | _IFF_NO_PI))
    namespace = host["namespace"]
    _ip("link", "set", name, "netns", namespace)
    _ip("-n", namespace, "addr", "add", f"{host['address']}/24", "dev", name)
    _ip("-n", namespace, "link", "set", name, "mtu", str(_MTU), "up", "txqueuelen", "2000")
    _ip("-n", namespace, "route", "change", "10.77.0.0/24", "dev", name, "congctl", "cubic")
    return descriptor


class _Rate:
    """A rate with a buffer before it."""

    def __init__(self, mbit_s: float, buffer_ms: float) -> None:
        self._bytes_s, self._buffer_s, self._free = mbit_s * 125_000, buffer_ms / 1000, 0.0

    def passes(self, now_s: float, size: int) -> float | None:
        """The time at which a packet has passed; None if it is dropped."""
        begin = max(now_s, self._free)
        if begin - now_s > self._buffer_s:
            return None
        self._free = begin + size / self._bytes_s
        return self._free


def relay(hosts: list[dict[str, Any]]) -> None:
    """Passes packets on until it is killed."""
    descriptors = [_device(f"hops{os.getpid()}t{number}"[-15:], host) for number, host in enumerate(hosts)]
    numbers = {bytes(map(int, host["address"].split("."))): number for number, host in enumerate(hosts)}
    up = [_Rate(host["up_mbit_s"], host["buffer_ms"]) for host in hosts]
    down = [_Rate(host["down_mbit_s"], host["buffer_ms"]) for host in hosts]
    delay = [host["delay_ms"] / 1000 for host in hosts]
    senders = {descriptor: number for number, descriptor in enumerate(descriptors)}
    waiting: list[tuple[float, int, int, bytes, bool]] = []  # whether the packet has passed the rate to its host
    chance, count = random.Random(1).random, 0
    with contextlib.suppress(OSError):
        os.nice(-15)
    print("ready", flush=True)
    while True:
        now = time.monotonic()
        while waiting and waiting[0][0] <= now:
            arrival_s, number, to, packet, is_through = heapq.heappop(waiting)
            if not is_through:  # in the order of arrival, so that no sender waits for the queue of another
                arrived = down[to].passes(arrival_s, len(packet))
                if arrived is not None:
                    heapq.heappush(waiting, (arrived, number, to, packet, True))
                continue
            with contextlib.suppress(OSError):  # a full queue of the device drops the packet, as in a real host
                os.write(descriptors[to], packet)
        timeout = max(0.0, min(0.5, waiting[0][0] - time.monotonic())) if waiting else 0.5
        for descriptor in select.select(descriptors, [], [], timeout)[0]:
            sender = senders[descriptor]
            for _ in range(64):
                try:
                    packet = os.read(descriptor, 65536)
                except OSError:  # no more
                    break
                to = numbers.get(packet[16:20]) if packet[0] >> 4 == 4 else None
                if to is None:
                    continue
                left = up[sender].passes(time.monotonic(), len(packet))
                if left is None or chance() < hosts[to]["loss"]:
                    continue
                count += 1
                heapq.heappush(waiting, (left + delay[sender] + delay[to], count, to, packet, False))


if __name__ == "__main__":
    relay(json.loads(sys.argv[1]))
