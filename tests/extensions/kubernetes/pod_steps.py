"""Steps for the tests of pods."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

from neighbour import WORD

import airflow_hops


def talk(context: Any, answer: str) -> dict[str, Any]:
    """Writes a line, and goes on when the worker has answered it in the store."""
    print("is anybody there?", flush=True)
    context.progress(0.5, "half", {"loss": 0.25})
    while not Path(answer).exists():
        time.sleep(0.05)
    return {"word": WORD, "data": Path(__file__).with_name("data.txt").read_text(), "host": socket.gethostname()}


def wait_long(context: Any, seconds: float = 600) -> str:
    print("waiting", flush=True)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.05)
    print("waited", flush=True)
    return socket.gethostname()


def die(context: Any) -> None:
    print("dying", flush=True)
    os._exit(3)


def end_slowly(context: Any, marker: str, seconds: float) -> None:
    """On SIGTERM, works for some seconds before it ends."""

    def finish(*_: Any) -> None:
        time.sleep(seconds)
        Path(marker).write_text("ended in order")
        os._exit(1)

    signal.signal(signal.SIGTERM, finish)
    wait_long(context)


def eat_memory(context: Any) -> None:
    eaten = []
    while True:
        eaten.append(bytearray(os.urandom(1 << 20) * 16))


def fill_disk(context: Any) -> None:
    (context.scratch / "large").write_bytes(bytes(64 << 20))
    wait_long(context)


def where(context: Any) -> dict[str, Any]:
    package = airflow_hops.__file__
    return {"host": socket.gethostname(), "python": sys.prefix, "dag": context.spec.producer.dag_id, "package": package}
