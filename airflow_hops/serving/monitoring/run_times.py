"""Usual run times of a model, by the size of the request."""

from __future__ import annotations

import math

from airflow_hops.core.serving_api.protocol import Method

_LONG_S = 0.02


class RunTimes:
    """Moving averages by model, method, and the power of two above the size of the message.

    Averages rise fast and fall slowly, so that a rare long run is remembered, since other requests wait for it. Runs on
    busy cores include waiting, so only the CPU time counts, unless the run took long in wall-clock time. Threads may
    overwrite each other's newest value, which is harmless.
    """

    def __init__(self) -> None:
        self._usual_s: dict[tuple[str, Method, int], float] = {}

    def usual_s(self, model: str, method: Method, message_bytes: int) -> float:
        """Returns the average in seconds; infinity if there is none."""
        return self._usual_s.get((model, method, message_bytes.bit_length()), math.inf)

    def add(self, model: str, method: Method, message_bytes: int, clock_s: float, cpu_s: float) -> None:
        """Adds one run; the model must exist, so that names invented by clients do not grow the table."""
        key = (model, method, message_bytes.bit_length())
        run_s = clock_s if clock_s > _LONG_S else cpu_s
        usual_s = self._usual_s.get(key, run_s)
        self._usual_s[key] = usual_s + (run_s - usual_s) / (2 if run_s > usual_s else 16)
