"""Shadow traffic: sends copies of answered requests to another version, compares its answers, and discards them."""

from __future__ import annotations

import copy as copying
import itertools
import logging
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import grpc
import numpy as np

from airflow_hops.core.serving_api import protocol, tensors
from airflow_hops.core.serving_api.protocol import Method
from airflow_hops.extensions.gateway.serving.flags import GatewayFlags
from airflow_hops.serving.capture.capture import Capture
from airflow_hops.serving.capture.record import CapturedCall
from airflow_hops.serving.capture.rows import outputs_of_result
from airflow_hops.serving.errors import ServingError
from airflow_hops.serving.models.catalog import Catalog
from airflow_hops.serving.models.servable import Call, Reply
from airflow_hops.serving.monitoring.stats import LatencyHistogram, add_counts
from airflow_hops.serving.parts import Answered
from airflow_hops.serving.request_kind import RequestKind


@dataclass
class OutputDifference:
    """Difference of one output between two answers, or its sum over many pairs of answers.

    Attributes:
        rows: Rows of the returned answer.
        rows_differing: Rows that differ by more than the tolerance.
        max_difference: Largest absolute difference; None if there is none: strings, different shapes, a missing output,
            NaN compared with a number.
        sum_difference: Sum of the largest absolute difference of each row that has one.
        rows_measured: Number of rows in that sum.
    """

    rows: int
    rows_differing: int
    max_difference: float | None = None
    sum_difference: float = 0.0
    rows_measured: int = 0

    def add(self, difference: OutputDifference) -> None:
        """Adds the difference of one pair or of several."""
        self.rows += difference.rows
        self.rows_differing += difference.rows_differing
        self.sum_difference += difference.sum_difference
        self.rows_measured += difference.rows_measured
        known = [most for most in (self.max_difference, difference.max_difference) if most is not None]
        self.max_difference = max(known, default=None)

    def report(self) -> dict[str, Any]:
        """Returns the counts, the share of rows that differ, and the largest and the mean difference."""
        return {
            "rows": self.rows,
            "rows_differing": self.rows_differing,
            "share_differing": self.rows_differing / self.rows if self.rows else None,
            "max_difference": self.max_difference,
            "mean_difference": self.sum_difference / self.rows_measured if self.rows_measured else None,
        }


def compare(method: Method, returned: bytes, shadow: bytes, tolerance: float) -> dict[str, OutputDifference]:
    """Compares two serialized answers output by output.

    Args:
        method: Method of the request.
        returned: The answer that was returned.
        shadow: The answer to compare with it.
        tolerance: Absolute and relative tolerance, as in ``numpy.isclose``; NaN equals NaN.

    Returns:
        Alias to difference. The aliases of Classify and Regress are ``scores``, ``labels`` and ``value``; those of
        MultiInference are prefixed with ``signature_name.``.
    """
    expected, result = outputs_of(method, returned), outputs_of(method, shadow)
    return {name: _difference(array, result.get(name), tolerance) for name, array in expected.items()} | {
        name: OutputDifference(_rows(array), _rows(array)) for name, array in result.items() if name not in expected
    }


def outputs_of(method: Method, message: bytes) -> dict[str, np.ndarray]:
    """Returns an answer as arrays by name, whose first dimension is the rows."""
    if method is Method.PREDICT:
        outputs = protocol.PredictResponse.FromString(message).outputs
        return {alias: tensors.from_proto(outputs[alias]) for alias in outputs}
    if method is Method.CLASSIFY:
        return _inferred(protocol.ClassificationResponse.FromString(message).result)
    if method is Method.REGRESS:
        return _inferred(protocol.RegressionResponse.FromString(message).result)
    named: dict[str, np.ndarray] = {}
    for result in protocol.MultiInferenceResponse.FromString(message).results:
        arrays = _inferred(getattr(result, result.WhichOneof("result")))
        named |= {f"{result.model_spec.signature_name}.{name}": array for name, array in arrays.items()}
    return named


def _inferred(result: Any) -> dict[str, np.ndarray]:
    return {"labels" if name == "classes" else name: array for name, array in outputs_of_result(result).items()}


def _difference(returned: np.ndarray, shadow: np.ndarray | None, tolerance: float) -> OutputDifference:
    rows = _rows(returned)
    numbers = returned.dtype.kind in "fiubc"
    if not rows and shadow is not None and shadow.shape == returned.shape:
        return OutputDifference(0, 0)
    if shadow is None or shadow.shape != returned.shape or (shadow.dtype.kind in "fiubc") != numbers:
        return OutputDifference(rows, rows)
    if not numbers:
        return OutputDifference(rows, int(np.any((returned != shadow).reshape(rows, -1), axis=1).sum()))
    left, right = _wide(returned), _wide(shadow)
    close = np.isclose(right, left, rtol=tolerance, atol=tolerance, equal_nan=True).reshape(rows, -1)
    with np.errstate(invalid="ignore"):
        apart = np.where(left == right, 0.0, np.abs(left - right)).reshape(rows, -1)
    apart[np.isnan(left).reshape(rows, -1) & np.isnan(right).reshape(rows, -1)] = 0.0
    largest = apart.max(axis=1, initial=0.0)
    measured = largest[np.isfinite(largest)]
    return OutputDifference(
        rows=rows,
        rows_differing=int((~close.all(axis=1)).sum()),
        max_difference=float(measured.max()) if len(measured) else None,
        sum_difference=float(measured.sum()),
        rows_measured=len(measured),
    )


def _wide(array: np.ndarray) -> np.ndarray:
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def _rows(array: np.ndarray) -> int:
    return len(array) if array.ndim else 1


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


@dataclass
class ShadowTotals:
    """Counts of the copies since the start, by model and by version, or label if its version is unknown."""

    models: dict[str, dict[str, ShadowCounts]] = field(default_factory=dict)

    def of(self, model: str, number: int | str) -> ShadowCounts:
        """Returns the counts of a version."""
        return self.models.setdefault(model, {}).setdefault(str(number), ShadowCounts())

    def add(self, other: ShadowTotals) -> None:
        """Adds the counts of another process."""
        for model, versions in other.models.items():
            for version, counts in versions.items():
                self.of(model, version).merge(counts)

    def versions(self, model: str) -> dict[str, Any]:
        """Returns the report of a model, by version."""
        return {name: counts.report() for name, counts in sorted(self.models.get(model, {}).items())}

    def report(self, model: str) -> dict[str, Any]:
        """Returns the member ``shadow`` of the model in ``GET /v1/stats``."""
        return {"shadow": versions} if (versions := self.versions(model)) else {}


class Shadow:
    """Sends the copies in background threads, with lower priority than requests.

    Args:
        catalog: Catalog of versions and shares of shadow traffic.
        flags: Flags for threads, queue, and tolerance.
        request_threads: Number of requests that the server runs at once.
        capture: Captures the answers to copies if the flags ask for that.
    """

    def __init__(self, catalog: Catalog, flags: GatewayFlags, request_threads: int, capture: Capture) -> None:
        self._catalog = catalog
        self._flags = flags
        self._capture = capture if flags.capture_shadow and capture.enabled else None
        # Copies wait while this many requests are in flight.
        self._quiet_in_flight = max(1, request_threads // 2)
        self._changed = threading.Condition()
        self._queue: deque[ShadowCopy] = deque()
        self._queue_bytes = 0
        self._offered: dict[tuple[str, int | str], itertools.count[int]] = {}
        self._counts = ShadowTotals()
        self._stopping = False
        self._threads = [
            threading.Thread(target=self._run, name=f"shadow-{number}", daemon=True)
            for number in range(flags.shadow_threads)
        ]
        for thread in self._threads:
            thread.start()

    def offer(self, answered: Answered) -> None:
        """Copies an answered request if it is in the share of shadow traffic; does not block."""
        model = answered.model
        percents = self._catalog.traffic.shadow.get(model)
        if not percents:
            return
        for target, percent in percents.items():
            number = self._number(model, target)
            if number == answered.version:
                continue
            counter = self._offered.get((model, target))
            if counter is None:
                counter = self._offered.setdefault((model, target), itertools.count())
            # Exact, evenly spread shares: the n-th request is copied if the integer part of n * percent / 100 grows.
            turn = next(counter)
            if (turn + 1) * percent // 100 == turn * percent // 100:
                continue
            copy = ShadowCopy(*answered, target)
            with self._changed:
                is_full = len(self._queue) >= self._flags.shadow_queue_requests
                if is_full or self._queue_bytes + copy.size > _QUEUE_BYTES:
                    self._counts.of(model, number).dropped += 1
                    continue
                self._queue.append(copy)
                self._queue_bytes += copy.size
                self._changed.notify()

    def counts(self) -> ShadowTotals:
        """Returns a copy of the counts."""
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
                by_code = self._counts.of(copy.model, number).by_code
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
            counts = self._counts.of(copy.model, version)
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
