"""The measured side of a timed process: imports, warms up, waits for the word, works, tells how long it took.

Standard library only, since it runs in this project's runtime environment and in the peers' environments.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

Work = Callable[[], Mapping[str, Any]]
"""Does the work that is timed, and returns facts about it (numbers)."""


def perform(ways: Mapping[str, Callable[..., Work]]) -> None:
    """Takes a way's name and arguments from the command line, and does its work when the parent says so.

    A way is called first, which is not timed: it imports, warms up, and returns the work.

    Args:
        ways: By name.
    """
    # What the libraries print must not get between the lines for the parent.
    parent = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    name, *arguments = sys.argv[1:]
    work = ways[name](*arguments)
    print("ready", file=parent, flush=True)
    sys.stdin.readline()
    seconds, facts = _timed(work)
    print(json.dumps({"seconds": seconds, **facts}), file=parent, flush=True)
    sys.stdin.readline()  # the parent reads this process's CPU seconds before it lets it end


def twice(work: Work) -> Work:
    """Work that is done once before the clock starts; its facts tell as ``first_s`` how long that took."""
    first_s, _ = _timed(work)
    return lambda: {**work(), "first_s": round(first_s, 4)}


def _timed(work: Work) -> tuple[float, Mapping[str, Any]]:
    began = time.perf_counter()
    facts = work()
    return time.perf_counter() - began, facts
