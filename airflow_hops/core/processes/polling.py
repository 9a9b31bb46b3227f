"""Waits by asking again and again: :func:`pauses` decides when, with the time as an argument, and :func:`poll` does it.

A coroutine loops over :func:`pauses` itself, and awaits ``asyncio.sleep(pause_s)``.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from airflow_hops.core.errors import HopsError

T = TypeVar("T")


class Overdue(HopsError):
    """Something that was waited for has not come in time."""


def pauses(
    every_s: float,
    timeout_s: float | None = None,
    *,
    slowest_s: float | None = None,
    now: Callable[[], float] = time.monotonic,
) -> Iterator[float]:
    """Yields the seconds to sleep before asking again, until the time limit is over.

    Args:
        every_s: Seconds between two questions.
        timeout_s: Time limit in seconds, from the first pause on; None for none. The last question is asked at its end.
        slowest_s: Seconds up to which each pause is twice the one before; None for equal pauses.
        now: Clock that never goes back, in seconds.
    """
    ends_s = math.inf if timeout_s is None else now() + timeout_s
    while (left_s := ends_s - now()) > 0:
        yield min(every_s, left_s)
        every_s = min(2 * every_s, slowest_s or every_s)


def poll(
    until: Callable[[], T | None],
    every_s: float,
    timeout_s: float | None = None,
    late: str | Callable[[], Exception] = "the wait is not over",
    *,
    slowest_s: float | None = None,
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] = time.sleep,
) -> T:
    """Returns the first answer that is neither None nor False; asks at least once.

    Args:
        until: Question, asked after each pause.
        every_s: Seconds between two questions.
        timeout_s: Time limit in seconds; None for none.
        late: State at the time limit in words, such as ``"pod a/b is still Pending"``, or the error to raise.
        slowest_s: Seconds up to which each pause is twice the one before; None for equal pauses.
        now: Clock that never goes back, in seconds.
        sleep: Sleeps for seconds; an event's ``wait`` ends a pause early.

    Raises:
        Overdue: the time limit is over, and ``late`` is a text.
    """
    waits = pauses(every_s, timeout_s, slowest_s=slowest_s, now=now)
    while (answer := until()) is None or answer is False:
        if (pause_s := next(waits, None)) is None:
            raise Overdue(f"{late} after {timeout_s:g} s") if isinstance(late, str) else late()
        sleep(pause_s)
    return answer
