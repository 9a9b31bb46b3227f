"""Links between ranks that the network has interrupted, as the kernel and Gloo report them."""

from __future__ import annotations

import contextlib
import re
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

# The kernel repeats a packet that is not acknowledged after 0.2, 0.6, 1.4, 3 … s. Three repetitions are a link that is
# down, not one that loses a packet now and then. A rank that hangs is no reason: its kernel acknowledges.
_REPETITIONS = 3
_MOST_LINKS = 8
_ESTABLISHED, _REPEATING = "01", "01"
_GLOO = re.compile(r"/gloo/transport/\S+\] (?P<reason>.*)")
_PEER = re.compile(r" ?\[(?P<address>[0-9.]+)\]:\d+")


def unanswered(pid: int) -> list[str]:
    """Returns the IPv4 addresses to which connections of a process repeat packets in vain."""
    sockets, addresses = set(), set()
    with contextlib.suppress(OSError):  # it has ended
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                sockets.add(str(descriptor.readlink()))
        for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
            _, _, remote, state, _, timer, repetitions, _, _, inode, *_ = line.split()
            is_repeating = timer.startswith(f"{_REPEATING}:") and int(repetitions, 16) >= _REPETITIONS
            if state == _ESTABLISHED and is_repeating and f"socket:[{inode}]" in sockets:
                # The kernel writes the address as a number in the machine's byte order.
                addresses.add(socket.inet_ntoa(int(remote.partition(":")[0], 16).to_bytes(4, sys.byteorder)))
    return sorted(addresses)


def broken_exchange(text: str) -> tuple[str, str] | None:
    """Returns the reason for which Gloo has given up an exchange, and the address of the other side or an empty text.

    Args:
        text: A line of a rank's output.
    """
    match = _GLOO.search(text)
    if match is None:
        return None
    peer = _PEER.search(match["reason"])
    # PyTorch appends a sentence of advice.
    return _PEER.sub("", match["reason"]).partition(". ")[0], peer["address"] if peer else ""


def describe_links(links: Mapping[tuple[str, str], str]) -> str:
    """Describes links between two hosts each, with what is known of them; those in both directions once."""
    between = sorted({f"between {min(link)} and {max(link)}{known}" for link, known in links.items()})
    more = len(between) - _MOST_LINKS
    return " and ".join(between[:_MOST_LINKS]) + (f" and {more} more links" if more > 0 else "")
