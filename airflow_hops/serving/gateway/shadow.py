"""Shadow traffic: sends copies of answered requests to another version, compares its answers, and discards them."""

from __future__ import annotations

import copy as copying
import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import grpc

from airflow_hops.serving.capture.capture import Capture
from airflow_hops.serving.capture.record import CapturedCall
from airflow_hops.serving.errors import ServingError
from airflow_hops.serving.flags import Flags
from airflow_hops.serving.gateway.comparison import OutputDifference, compare
from airflow_hops.serving.models.catalog import Catalog
from airflow_hops.serving.models.servable import Call, Reply
from airflow_hops.serving.monitoring.stats import LatencyHistogram, add_counts
from airflow_hops.serving.request_kind import RequestKind

log = logging.getLogger(__name__)

_QUEUE_BYTES = 64 * 2**20
_COPY_TIMEOUT_S = 30.0
# How long a copy waits for load to fall, so that copies are also sent under constant load.
_PATIENCE_S = 0.05
_PAUSE_S = 0.002


@dataclass(slots=True)
class ShadowCopy:
    """A copy of an answered request.

    Attributes:
        request_id: The client's id of the request, or None.
        api: "grpc" or "rest".
        model: Model name.
        version: The version that answered.
        call: The request.
        reply: The answer that was returned.
        target: The version or label that gets the copy.
    """

    request_id: str | None
    api: str
    model: str
    version: int
    call: Call
    reply: Reply
    target: int | str

    @property
    def size(self) -> int:
        """Size of the copy in bytes."""
        return len(self.call.message) + len(self.reply.message)


@dataclass
class ShadowCounts:
    """Counts of the copies for one version.

    Attributes:
        by_code: Name of the gRPC status code to copies.
        dropped: Copies dropped because the queue was full.
        rows: Rows of answered copies.
        compared_with: Version that answered the original request to number of answered copies.
        latency: Latencies of answered copies.
        outputs: Differences by output.
    """

    by_code: dict[str, int] = field(default_factory=dict)
    dropped: int = 0
    rows: int = 0
    compared_with: dict[int, int] = field(default_factory=dict)
    latency: LatencyHistogram = field(default_factory=LatencyHistogram)
    outputs: dict[str, OutputDifference] = field(default_factory=dict)

    def merge(self, other: ShadowCounts) -> None:
        """Adds other counts."""
        add_counts(self.by_code, other.by_code)
        add_counts(self.compared_with, other.compared_with)
        self.dropped += other.dropped
        self.rows += other.rows
        self.latency += other.latency
        for name, counts in other.outputs.items():
            self.outputs.setdefault(name, OutputDifference(0, 0)).add(counts)

    def report(self) -> dict[str, Any]:
        """Returns the counts as in ``GET /v1/stats``."""
        requests = sum(self.by_code.values())
        return {
            "requests": requests,
            "errors": requests - self.by_code.get("OK", 0),
            "dropped": self.dropped,
            "codes": dict(sorted(self.by_code.items())),
            "rows": self.rows,
            "compared_with": {str(version): count for version, count in sorted(self.compared_with.items())},
            "latency_ms_p50": self.latency.percentile_ms(50),
            "latency_ms_p99": self.latency.percentile_ms(99),
            "outputs": {name: counts.report() for name, counts in sorted(self.outputs.items())},
        }


ReadShadow = Callable[[], dict[str, dict[str, ShadowCounts]]]
"""Returns the counts of the copies since the start, by model and version."""


def shadow_report(versions: Mapping[str, ShadowCounts] | None) -> dict[str, Any]:
    """Returns the report of a model's shadow traffic, by version."""
    return {name: counts.report() for name, counts in sorted((versions or {}).items())}


class Shadow:
    """Sends the copies in background threads, with lower priority than requests.

    Args:
        catalog: Catalog of versions and shares of shadow traffic.
        flags: Flags for threads, queue, and tolerance.
        capture: Captures the answers to copies if the flags ask for that.
    """

    def __init__(self, catalog: Catalog, flags: Flags, capture: Capture) -> None:
        self._catalog = catalog
        self._flags = flags
        self._capture = capture if flags.capture_shadow and capture.enabled else None
        # Copies wait while this many requests are in flight.
        self._quiet_in_flight = max(1, flags.request_threads // 2)
        self._changed = threading.Condition()
        self._queue: deque[ShadowCopy] = deque()
        self._queue_bytes = 0
        self._offered: dict[tuple[str, int | str], itertools.count[int]] = {}
        self._counts: dict[str, dict[str, ShadowCounts]] = {}
        self._stopping = False
        self._threads = [
            threading.Thread(target=self._run, name=f"shadow-{number}", daemon=True)
            for number in range(flags.shadow_threads)
        ]
        for thread in self._threads:
            thread.start()

    def offer(self, request_id: str | None, api: str, model: str, version: int, call: Call, reply: Reply) -> None:
        """Copies an answered request if it is in the share of shadow traffic; does not block."""
        percents = self._catalog.traffic.shadow.get(model)
        if not percents:
            return
        for target, percent in percents.items():
            number = self._number(model, target)
            if number == version:
                continue
            counter = self._offered.get((model, target))
            if counter is None:
                counter = self._offered.setdefault((model, target), itertools.count())
            # Exact, evenly spread shares: the n-th request is copied if the integer part of n * percent / 100 grows.
            turn = next(counter)
            if (turn + 1) * percent // 100 == turn * percent // 100:
                continue
            copy = ShadowCopy(request_id, api, model, version, call, reply, target)
            with self._changed:
                is_full = len(self._queue) >= self._flags.shadow_queue_requests
                if is_full or self._queue_bytes + copy.size > _QUEUE_BYTES:
                    self._counts_of(model, number).dropped += 1
                    continue
                self._queue.append(copy)
                self._queue_bytes += copy.size
                self._changed.notify()

    def counts(self) -> dict[str, dict[str, ShadowCounts]]:
        """Returns a copy of the counts, by model and version, or label if its version is unknown."""
        with self._changed:
            return copying.deepcopy(self._counts)

    def close(self) -> None:
        """Drops the queued copies."""
        with self._changed:
            self._stopping = True
            self._queue.clear()
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(1.0)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._stopping)
                if self._stopping:
                    return
                copy = self._queue.popleft()
                self._queue_bytes -= copy.size
            self._give_way()
            try:
                self._ask(copy)
            except Exception:
                log.exception("shadow traffic of model %s: a copy failed", copy.model)

    def _give_way(self) -> None:
        until_s = time.monotonic() + _PATIENCE_S
        while time.monotonic() < until_s and not self._stopping:
            views = list(self._catalog.views.values())
            in_flight = sum(servable.in_flight for view in views for servable in view.servables.values())
            if in_flight < self._quiet_in_flight:
                return
            time.sleep(_PAUSE_S)

    def _ask(self, copy: ShadowCopy) -> None:
        number: int | str = self._number(copy.model, copy.target)
        label = copy.target if isinstance(copy.target, str) else None
        started_s = time.perf_counter()
        try:
            servable = self._catalog.acquire(copy.model, None if label else int(copy.target), label)
            try:
                number = servable.version or number
                call = Call(copy.call.method, copy.call.message, time.monotonic() + _COPY_TIMEOUT_S)
                reply = servable.answer(call)
            finally:
                servable.release()
        except Exception as error:
            code = error.code if isinstance(error, ServingError) else grpc.StatusCode.INTERNAL
            with self._changed:
                by_code = self._counts_of(copy.model, number).by_code
                by_code[code.name] = by_code.get(code.name, 0) + 1
                is_first = by_code[code.name] == 1
            if is_first:
                log.warning("shadow traffic of model %s to %s: %s: %s", copy.model, copy.target, code.name, error)
            return
        latency_s = time.perf_counter() - started_s
        version = reply.version or servable.version
        differences = compare(copy.call.method, copy.reply.message, reply.message, self._flags.shadow_tolerance)
        # Capture the answer before counting it, so that all counted answers are captured.
        if self._capture is not None:
            kind = RequestKind(copy.model, version, copy.call.method.label, copy.api.upper())
            request_id = copy.request_id or self._capture.new_request_id()
            at_us, messages = int((time.time() - latency_s) * 1e6), (copy.call.message, reply.message)
            self._capture.offer(
                CapturedCall(kind, request_id, at_us, latency_s * 1e3, reply.rows, *messages, shadow=True)
            )
        with self._changed:
            counts = self._counts_of(copy.model, version)
            counts.by_code["OK"] = counts.by_code.get("OK", 0) + 1
            counts.rows += reply.rows
            counts.compared_with[copy.version] = counts.compared_with.get(copy.version, 0) + 1
            counts.latency.add(latency_s)
            for name, difference in differences.items():
                counts.outputs.setdefault(name, OutputDifference(0, 0)).add(difference)

    def _number(self, model: str, target: int | str) -> int | str:
        """Returns the version of a label, or the label if its version is unknown."""
        view = self._catalog.views.get(model)
        return target if isinstance(target, int) or view is None else view.labels.get(target, target)

    def _counts_of(self, model: str, number: int | str) -> ShadowCounts:
        return self._counts.setdefault(model, {}).setdefault(str(number), ShadowCounts())
