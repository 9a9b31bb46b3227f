"""What waits a moment for the spool: in order, all of it, and never too much."""

from __future__ import annotations

import threading
from collections.abc import Iterable

import pytest

from airflow_hops.serving.capture.backlog import Backlog
from airflow_hops.serving.capture.record import CapturedCall
from airflow_hops.serving.request_kind import RequestKind

KIND = RequestKind("m", 1, "Predict", "GRPC")


def call(number: int, request: bytes = b"request") -> CapturedCall:
    return CapturedCall(KIND, f"r{number}", number, 1.0, 1, request, b"response")


class Taken:
    """Takes what a backlog hands on, unless it is told to wait or to fail."""

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.came = threading.Semaphore(0)
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self.fails = False

    def __call__(self, calls: Iterable[CapturedCall]) -> None:
        for each in calls:
            self.came.release()
            self.may_go_on.wait()
            if self.fails:
                raise OSError("no")
            self.ids.append(each.request_id)


@pytest.fixture
def taken() -> Taken:
    return Taken()


def test_all_are_handed_on_in_order(taken: Taken) -> None:
    backlog = Backlog(taken)
    assert backlog.add(call(0))
    assert taken.came.acquire(timeout=10), "without being asked for"
    for number in range(1, 5):
        assert backlog.add(call(number))
    backlog.empty()
    assert taken.ids == ["r0", "r1", "r2", "r3", "r4"]
    backlog.add(call(5))
    backlog.close()
    assert taken.ids[-1] == "r5"


def test_too_many_and_too_large_ones_are_refused(taken: Taken) -> None:
    taken.may_go_on.clear()
    backlog = Backlog(taken)
    assert not backlog.add(call(0, bytes(2**20)))
    number = 0
    while backlog.add(call(number)):
        number += 1
    assert 1_000 < number < 10_000
    taken.may_go_on.set()
    backlog.close()
    assert len(taken.ids) == number


def test_one_failure_does_not_end_it(taken: Taken) -> None:
    taken.fails = True
    backlog = Backlog(taken)
    backlog.add(call(0))
    assert taken.came.acquire(timeout=10)
    with backlog._taking:  # the failed round is over
        taken.fails = False
    backlog.add(call(1))
    assert taken.came.acquire(timeout=10)
    backlog.close()
    assert taken.ids == ["r1"]
