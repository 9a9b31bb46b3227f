"""Calls of the gRPC server in each stage of their life, and which requests it answers in its own thread."""

from __future__ import annotations

import gc
import math
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from typing import Any

import grpc
import pytest
from waiting import wait_for

from airflow_hops.core.serving_api.protocol import Method
from airflow_hops.serving.api.grpc_calls import Metadata, UnaryCalls, UnaryMethod, _Call
from airflow_hops.serving.api.grpc_internals import KNOWN
from airflow_hops.serving.monitoring.stats import RunTimes
from airflow_hops.serving.request_memory import RequestMemory

PATH = "/t.Service/Method"
MOST = 3


class Echo:
    """A gRPC server that answers a message with itself, ``wait`` once it may, in one thread beside gRPC's own."""

    def __init__(self, receive_s: float = math.inf) -> None:
        self.server = grpc.server(ThreadPoolExecutor(1))
        calls = UnaryCalls(self.server, 1, MOST, RequestMemory(110_000), receive_s)
        self.running, self.may_end = threading.Semaphore(0), threading.Event()
        self.answered: list[bytes] = []
        functions = {"read": lambda message: message, "is_quick": lambda message: message in (b"quick", b"stuck")}
        calls.add(UnaryMethod(PATH, answer=self._answer, check=lambda metadata: None, **functions))
        self.port = self.server.add_insecure_port("127.0.0.1:0")
        calls.start()
        self.channel = grpc.insecure_channel(f"127.0.0.1:{self.port}")
        self.ask = self.channel.unary_unary(PATH)

    def _answer(self, message: bytes, metadata: Metadata, deadline_s: float) -> tuple[bytes, Metadata | None]:
        self.answered.append(message)
        if message in (b"wait", b"stuck"):
            self.running.release()
            self.may_end.wait()
        if message == b"fail":
            raise RuntimeError("\ud800 é")
        return message, None

    def begin(self, timeout_s: float | None = None) -> grpc.Call:
        """A call whose message does not come."""

        def nothing_yet() -> Iterator[bytes]:
            self.may_end.wait()
            yield from ()

        call: grpc.Call = self.channel.stream_unary(PATH).future(nothing_yet(), timeout=timeout_s)
        return call


@pytest.fixture
def echo(request: pytest.FixtureRequest) -> Iterator[Echo]:
    server = Echo(getattr(request, "param", math.inf))
    yield server
    server.may_end.set()
    server.server.stop(0).wait()
    server.channel.close()


@pytest.mark.parametrize("how", ["cancelled", "too late"])
def test_cancelled_call_leaves_no_state(echo: Echo, how: str) -> None:
    timeout_s = 0.3 if how == "too late" else None
    runs = echo.ask.future(b"wait", timeout=timeout_s)
    echo.running.acquire()
    waits = echo.ask.future(b"wait", timeout=timeout_s)
    begun = echo.begin(timeout_s)
    for call in (runs, waits, begun):
        if how == "cancelled":
            call.cancel()
        expected = grpc.StatusCode.CANCELLED if how == "cancelled" else grpc.StatusCode.DEADLINE_EXCEEDED
        assert call.code() is expected
    echo.may_end.set()
    # Each call that was given up counts until it has ended here, and none counts for ever.
    for _ in range(MOST + 1):
        while True:
            answered = echo.ask.future(b"slow")
            if answered.code() is grpc.StatusCode.OK:
                break
    assert echo.server.stop(300).wait()
    del runs, waits, begun, call, answered
    # type(): isinstance() would ask the proxies of other modules, which import what they stand for.
    while any(type(each) is _Call for each in gc.get_objects()):
        gc.collect()


def test_cancelled_call_is_not_run(echo: Echo) -> None:
    runs = echo.ask.future(b"wait")
    echo.running.acquire()
    echo.ask.future(b"given up").cancel()
    assert echo.ask.future(b"too late", timeout=0.2).code() is not grpc.StatusCode.OK
    # The server hears of it before it hears of these.
    heard = [echo.ask.future(b"quick").code() for _ in range(100)]
    assert set(heard) <= {grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE}
    echo.may_end.set()
    assert runs.result() == b"wait"
    assert echo.server.stop(300).wait()
    assert set(echo.answered) <= {b"wait", b"quick"}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # SystemExit
def test_quick_request_that_takes_long_delays_no_other(echo: Echo) -> None:
    threads = threading.active_count()
    stuck = echo.ask.future(b"stuck")
    echo.running.acquire()
    assert echo.ask.future(b"quick", timeout=300).result() == b"quick"
    again = echo.ask.future(b"stuck")  # none counts as quick meanwhile
    echo.running.acquire()
    assert echo.ask.future(b"quick", timeout=0.3).code() is grpc.StatusCode.DEADLINE_EXCEEDED  # the pool is full
    echo.may_end.set()
    assert [stuck.result(), again.result()] == [b"stuck", b"stuck"]
    wait_for(lambda: threading.active_count() <= threads + 1, "the thread that was stuck has ended")
    assert [echo.ask(b"quick", timeout=300) for _ in range(10)] == [b"quick"] * 10
    assert echo.server.stop(300).wait()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # SystemExit
def test_server_with_a_stuck_request_stops(echo: Echo) -> None:
    calls = []  # a call that nobody holds is cancelled
    for _ in range(2):
        calls.append(echo.ask.future(b"stuck"))
        echo.running.acquire()
    stopped = echo.server.stop(0.1)
    assert not stopped.wait(0.5)
    echo.may_end.set()
    assert stopped.wait()


def test_drain_answers_received_calls_and_closes_the_rest(echo: Echo) -> None:
    runs = echo.ask.future(b"wait")
    echo.running.acquire()
    waits, last = echo.ask.future(b"wait"), echo.ask.future(b"wait")
    begun = echo.begin()
    while echo.ask.future(b"quick").code() is not grpc.StatusCode.UNAVAILABLE:
        pass
    stopped = echo.server.stop(300)
    with grpc.insecure_channel(f"127.0.0.1:{echo.port}") as late, pytest.raises(grpc.RpcError) as refused:
        late.unary_unary(PATH)(b"quick", timeout=300)
    # Cancelled, if the connection came while the port was being closed.
    assert refused.value.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
    echo.may_end.set()
    assert [call.result() for call in (runs, waits, last)] == [b"wait"] * MOST
    assert begun.code() is not grpc.StatusCode.OK
    assert stopped.wait()


def test_exception_reaches_the_client_and_the_server_continues(echo: Echo) -> None:
    for _ in range(MOST + 1):
        with pytest.raises(grpc.RpcError) as failed:
            echo.ask(b"fail")
        assert (failed.value.code(), failed.value.details()) == (grpc.StatusCode.INTERNAL, "RuntimeError: ? é")
    assert echo.ask(b"quick") == b"quick"


def test_received_calls_count_against_the_limit(echo: Echo) -> None:
    begun = [echo.begin() for _ in range(4 * MOST)]  # whose messages do not come, which keep no other out
    assert [echo.ask(b"quick") for _ in range(MOST)] == [b"quick"] * MOST
    calls: list[Any] = [echo.ask.future(b"wait") for _ in range(MOST)]
    echo.running.acquire()
    while (refused := echo.ask.future(b"quick")).code() is grpc.StatusCode.OK:
        pass
    assert (refused.code(), refused.details()) == (grpc.StatusCode.UNAVAILABLE, "Too many requests in flight")
    echo.may_end.set()
    assert [call.code() for call in calls] == [grpc.StatusCode.OK] * MOST
    assert {call.code() for call in begun} <= {grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.UNAVAILABLE}


@pytest.mark.parametrize("echo", [0.2], indirect=True)
def test_call_without_message_is_ended_and_uncounted(echo: Echo) -> None:
    for _ in range(MOST):
        calls = [echo.begin() for _ in range(MOST)]
        assert {(call.code(), call.details()) for call in calls} <= {
            (grpc.StatusCode.DEADLINE_EXCEEDED, "The message of the request did not arrive"),
            (grpc.StatusCode.UNAVAILABLE, "Too many requests in flight"),
        }
    # A run that takes longer is no message that does not come.
    runs = echo.ask.future(b"wait")
    echo.running.acquire()
    echo.begin().code()
    echo.may_end.set()
    assert runs.result() == b"wait"


def test_waiting_messages_respect_the_memory_limit(echo: Echo) -> None:
    runs = echo.ask.future(b"wait")
    echo.running.acquire()
    waits = echo.ask.future(bytes(60_000))
    while (refused := echo.ask.future(bytes(60_000))).code() is grpc.StatusCode.OK:
        pass
    assert refused.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    echo.may_end.set()
    assert runs.result() == b"wait"
    # Decoding it would take more than there is.
    assert waits.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    for _ in range(MOST + 1):
        assert echo.ask(bytes(1000), timeout=300) == bytes(1000)


@pytest.mark.parametrize("long", [(10.0, 10.0), (10.0, 1e-5)], ids=["computes", "waits"])
def test_rare_long_run_among_short_ones_is_remembered(long: tuple[float, float]) -> None:
    times = RunTimes()

    def is_quick(message_bytes: int = 100) -> bool:
        return times.usual_s("m", Method.PREDICT, message_bytes) < 1e-3

    assert not is_quick()
    for _ in range(500):
        times.add("m", Method.PREDICT, 100, 5e-3, 1e-5)  # the rest of the time it waited for a core
    assert is_quick()
    times.add("m", Method.PREDICT, 100, *long)
    for _ in range(100):
        times.add("m", Method.PREDICT, 100, 1e-5, 1e-5)
    assert not is_quick()
    assert not is_quick(300)


def test_grpcio_version_matches_the_private_api_in_use() -> None:
    result = version("grpcio")
    assert result.startswith(f"{KNOWN}."), (
        f"grpcio {result}: run the tests of serving and benchmarks/serving.py, then set KNOWN in grpc_internals.py"
    )


@pytest.mark.parametrize("part", ["_cy_server", "_state"])
def test_incompatible_grpcio_is_reported(part: str) -> None:
    server = grpc.server(ThreadPoolExecutor(1))
    delattr(server, part)
    with pytest.raises(ImportError, match=rf"grpcio [\d.]+ is not as this server needs it \(.*{part}.*\): .* pins\."):
        UnaryCalls(server, 1)
