"""Usual run times of a model, by the size of the request."""

from __future__ import annotations

import math

from airflow_hops.core.serving_api.protocol import Method

_LONG_S = 0.02


class RunTimes:
    """Moving averages by model, method and the power of two that a message's size lies below.

    They rise fast and fall slowly: a rare long run is remembered, as others wait for it. On busy cores a run also waits
    for its turn, so only its CPU time counts, unless it took long by the clock. Requests in several threads may
    overwrite each other's newest value, which does no harm.
    """

    def __init__(self) -> None:
        self._usual_s: dict[tuple[str, Method, int], float] = {}

    def usual_s(self, model: str, method: Method, message_bytes: int) -> float:
        """Returns the average, seconds; infinity if nothing is known."""
        return self._usual_s.get((model, method, message_bytes.bit_length()), math.inf)

    def add(self, model: str, method: Method, message_bytes: int, clock_s: float, cpu_s: float) -> None:
        """Adds one run of a model that is served: names that clients make up must not grow the table."""
        key = (model, method, message_bytes.bit_length())
        run_s = clock_s if clock_s > _LONG_S else cpu_s
        usual_s = self._usual_s.get(key, run_s)
        self._usual_s[key] = usual_s + (run_s - usual_s) / (2 if run_s > usual_s else 16)
