"""Autoscaling: the number of workers of a version, by its requests in flight."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

_SCALE_OUT_WINDOW_S = 1.0


@dataclass(frozen=True)
class WorkerBounds:
    """The least and the greatest number of workers of a version; 0 to 0 runs models in the server's own process."""

    minimum: int = 0
    maximum: int = 0

    @classmethod
    def parse(cls, text: str) -> WorkerBounds:
        """Reads ``N`` or ``MIN:MAX``.

        Raises:
            ValueError: It is neither, or the bounds are not in order.
        """
        low, colon, high = text.partition(":")
        bounds = cls(int(low), int(high if colon else low))
        if not 0 <= bounds.minimum <= bounds.maximum or (colon and not bounds.minimum):
            raise ValueError(text)
        return bounds

    def __bool__(self) -> bool:
        return self.maximum > 0


NO_WORKERS = WorkerBounds()


@dataclass(frozen=True)
class ScalingOptions:
    """Options of the autoscaling: when workers are added and taken away.

    Attributes:
        bounds: Workers at least and at most.
        target_in_flight: Requests in flight, the waiting ones included, that one worker is for.
        scale_in_s: How long fewer workers must have been enough before one is taken away.
    """

    bounds: WorkerBounds
    target_in_flight: float = 2.0
    scale_in_s: float = 30.0


class Autoscaler:
    """Scales out at once and in slowly, by concurrency, as Knative's autoscaler does.

    Wanted at a moment is the mean number of requests in flight over the last second divided by what one worker is for,
    rounded up. In effect is the highest number wanted within the scale-in window, so that a pause takes nothing away.

    Args:
        options: Bounds, target and window.
    """

    def __init__(self, options: ScalingOptions) -> None:
        self._options = options
        self._samples: deque[tuple[float, int]] = deque()
        self._wanted: deque[tuple[float, int]] = deque()

    def observe(self, in_flight: int, now_s: float) -> int:
        """Takes a sample and returns the number of workers to have.

        Args:
            in_flight: Requests in flight now.
            now_s: As of ``time.monotonic()``.
        """
        options = self._options
        _slide(self._samples, now_s, in_flight, _SCALE_OUT_WINDOW_S)
        mean = sum(count for _, count in self._samples) / len(self._samples)
        _slide(self._wanted, now_s, math.ceil(mean / options.target_in_flight), options.scale_in_s)
        highest = max(count for _, count in self._wanted)
        return min(max(highest, options.bounds.minimum), options.bounds.maximum)


def _slide(window: deque[tuple[float, int]], now_s: float, value: int, window_s: float) -> None:
    window.append((now_s, value))
    while window[0][0] < now_s - window_s:
        window.popleft()
