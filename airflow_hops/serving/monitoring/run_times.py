"""Usual run times of a model, by the size of the request."""

from __future__ import annotations

import math
import time

from airflow_hops.core.serving_api.protocol import Method

_Key = tuple[str, Method, int]

_WEIGHT = 1 / 16
_WAIT_WEIGHT = 1 / 256
# A run that takes longer stands out of an average that is quick. It is remembered for so many times as long, so that
# whoever trusts the average, and waits for such runs, waits for a small part of the time.
_LONG_S = 0.02
_REMEMBERED = 20


class RunTimes:
    """Moving averages by model, method and the power of two that a message's size lies below.

    They are of CPU time: on busy cores a run also waits for its turn, however little it is. What even the shortest of
    the last waits took belongs to the run.

    Requests in several threads may overwrite each other's newest value, which does no harm.
    """

    def __init__(self) -> None:
        self._usual_s: dict[_Key, float] = {}
        self._wait_s: dict[_Key, float] = {}
        self._long_until_s: dict[_Key, float] = {}

    def usual_s(self, model: str, method: Method, message_bytes: int) -> float:
        """Returns the average, seconds; infinity where nothing is known, and a while after a run of another kind."""
        key = (model, method, message_bytes.bit_length())
        if self._long_until_s and time.monotonic() < self._long_until_s.get(key, 0.0):
            return math.inf
        return self._usual_s.get(key, math.inf) + self._wait_s.get(key, 0.0)

    def add(self, model: str, method: Method, message_bytes: int, run_s: float, wait_s: float = 0.0) -> None:
        """Adds one run.

        Args:
            model: One that is served: names that clients make up must not grow the table.
            method: The request's.
            message_bytes: Size of the request.
            run_s: CPU seconds.
            wait_s: Seconds that it waited, for the CPU or anything else.
        """
        key = (model, method, message_bytes.bit_length())
        usual_s = self._usual_s.get(key)
        self._usual_s[key] = run_s if usual_s is None else usual_s + _WEIGHT * (run_s - usual_s)
        least_s = self._wait_s.get(key, wait_s)
        self._wait_s[key] = min(wait_s, least_s + _WAIT_WEIGHT * (wait_s - least_s))
        # The first run prepares what the others find. One that was long keeps others waiting, whatever it waited for.
        if (clock_s := run_s + wait_s) > _LONG_S and usual_s is not None:
            self._long_until_s[key] = time.monotonic() + _REMEMBERED * clock_s
