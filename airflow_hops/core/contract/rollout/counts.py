"""A server's counts of a version: requests, errors, and latencies in a histogram."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Histogram:
    """Latencies in buckets.

    Attributes:
        buckets: ``(lower_ms, upper_ms)`` to a count.
    """

    buckets: Mapping[tuple[float, float], int] = field(default_factory=dict)

    @classmethod
    def of(cls, rows: Sequence[Sequence[float]]) -> Histogram:
        """From the ``[lower_ms, upper_ms, count]`` of ``GET /v1/stats?histograms=1``."""
        return cls({(float(lower), float(upper)): int(count) for lower, upper, count in rows})

    @classmethod
    def parse(cls, text: str) -> Histogram:
        """The inverse of :meth:`text`."""
        return cls.of([[float(number) for number in bucket.split(":")] for bucket in text.split()])

    def text(self) -> str:
        """One line: ``lower_ms:upper_ms:count``, ascending."""
        return " ".join(f"{lower!r}:{upper!r}:{count}" for (lower, upper), count in sorted(self.buckets.items()))

    @property
    def total(self) -> int:
        """How many latencies there are."""
        return sum(self.buckets.values())

    def plus(self, other: Histogram, sign: int = 1) -> Histogram:
        """The sum of two; with ``sign`` -1 what this one has beyond an earlier state of it."""
        counts = {
            bucket: self.buckets.get(bucket, 0) + sign * other.buckets.get(bucket, 0)
            for bucket in self.buckets.keys() | other.buckets.keys()
        }
        return Histogram({bucket: count for bucket, count in counts.items() if count > 0})

    def bucket_at(self, rank: int) -> tuple[float, float]:
        """The bucket of the ``rank``-th smallest latency, from 1 to :attr:`total`."""
        for bucket in sorted(self.buckets):
            rank -= self.buckets[bucket]
            if rank <= 0:
                return bucket
        raise ValueError("the rank is beyond the last latency")

    def quantile_ms(self, quantile: float) -> float | None:
        """A quantile, the middle of its bucket; None where nothing was counted."""
        if not self.total:
            return None
        lower, upper = self.bucket_at(max(1, -int(-quantile * self.total // 1)))
        return round((lower + upper) / 2, 4)

    def above(self, limit_ms: float) -> int:
        """How many latencies are surely at or beyond a limit."""
        return sum(count for (lower, _), count in self.buckets.items() if lower >= limit_ms)


@dataclass(frozen=True)
class Counts:
    """Requests of a version in a period.

    Attributes:
        requests: Requests that were answered, failed or were refused.
        errors: Those that failed.
        latency: Latencies of those that were answered.
        client_errors: Those that were refused as the client's mistake; a server of an earlier version counts them
            among the errors.
    """

    requests: int = 0
    errors: int = 0
    latency: Histogram = field(default_factory=Histogram)
    client_errors: int = 0

    @classmethod
    def of(cls, snapshot: Mapping[str, Any]) -> Counts:
        """Reads the counts of a version's entry of ``GET /v1/stats?histograms=1``, since the server started."""
        latency = Histogram.of(snapshot.get("latency_ms_histogram") or ())
        return cls(int(snapshot["requests"]), int(snapshot["errors"]), latency, int(snapshot.get("client_errors", 0)))

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Counts:
        """The inverse of :meth:`to_dict`."""
        latency = Histogram.parse(value.get("latency_ms_histogram", ""))
        return cls(value.get("requests", 0), value.get("errors", 0), latency, value.get("client_errors", 0))

    def to_dict(self) -> dict[str, Any]:
        """JSON: the counts, two percentiles for people, and the histogram in one line."""
        return {
            "requests": self.requests,
            "errors": self.errors,
            "client_errors": self.client_errors,
            "latency_ms_p50": self.latency.quantile_ms(0.5),
            "latency_ms_p99": self.latency.quantile_ms(0.99),
            "latency_ms_histogram": self.latency.text(),
        }

    def plus(self, other: Counts, sign: int = 1) -> Counts:
        """The sum of two; with ``sign`` -1 what was counted since an earlier state."""
        return Counts(
            self.requests + sign * other.requests,
            self.errors + sign * other.errors,
            self.latency.plus(other.latency, sign),
            self.client_errors + sign * other.client_errors,
        )

    @property
    def accepted(self) -> int:
        """Requests that were not refused: those that the version could fail."""
        return self.requests - self.client_errors

    @property
    def error_rate(self) -> float:
        """Share of the accepted requests that failed."""
        return self.errors / self.accepted if self.accepted else 0.0

    @property
    def refusal_rate(self) -> float:
        """Share of the requests that were refused."""
        return self.client_errors / self.requests if self.requests else 0.0


def counted_since(now: Mapping[str, Any], before: Mapping[str, Any] | None) -> Counts:
    """Returns the counts between two snapshots of one version.

    Args:
        now: An entry of :meth:`airflow_hops.ml.model_server.ModelServer.counts`.
        before: An earlier one as :func:`snapshot_of` keeps it, or None. A server that has started since counts from
            nothing: all that it has is new.
    """
    counts = Counts.of(now)
    if not before or before.get("server_since") != now.get("server_since"):
        return counts
    earlier = Counts.from_dict(before)
    return counts.plus(earlier, -1) if earlier.requests <= counts.requests else counts


def snapshot_of(entry: Mapping[str, Any]) -> dict[str, Any]:
    """A version's entry of the server's counts as the record keeps it for :func:`counted_since`."""
    return {**Counts.of(entry).to_dict(), "server_since": entry.get("server_since")}
