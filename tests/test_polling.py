"""Tests of waits by polling, on a clock that only sleeps move."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from airflow_hops.core.processes.files import LockHeld
from airflow_hops.core.processes.polling import Overdue, pauses, poll


class Clock:
    """Clock that a sleep moves, and that remembers the sleeps."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_s += seconds


def ask(answers: Iterable[object], every_s: float, timeout_s: float | None = None, **options: object) -> object:
    clock = Clock()
    return poll(iter(answers).__next__, every_s, timeout_s, now=clock, sleep=clock.sleep, **options), clock.slept  # type: ignore[arg-type]


def test_first_answer_needs_no_pause() -> None:
    assert ask([7], 1.0, 0.0) == (7, [])


def test_none_and_false_are_asked_again_but_zero_is_an_answer() -> None:
    assert ask([None, False, 0], 2.0) == (0, [2.0, 2.0])


def test_last_question_is_asked_at_the_time_limit() -> None:
    assert ask([None, None, None, "done"], 2.0, 5.0) == ("done", [2.0, 2.0, 1.0])


def test_overdue_names_what_was_waited_for() -> None:
    with pytest.raises(Overdue, match=r"^pod a/b is still Pending after 0\.5 s$"):
        ask([None, None], 0.5, 0.5, late="pod a/b is still Pending")


def test_own_error_is_raised_at_the_time_limit() -> None:
    with pytest.raises(LockHeld, match="mine"):
        ask([None], 0.5, 0.0, late=lambda: LockHeld("mine"))


def test_pauses_double_up_to_the_slowest() -> None:
    assert ask([None] * 5 + [1], 0.1, slowest_s=0.5) == (1, [0.1, 0.2, 0.4, 0.5, 0.5])


def test_pauses_end_with_the_time_limit() -> None:
    clock = Clock()
    for pause_s in pauses(2.0, 3.0, now=clock):
        clock.sleep(pause_s)
    assert clock.slept == [2.0, 1.0]
