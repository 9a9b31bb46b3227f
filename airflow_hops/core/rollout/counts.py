"""A server's counts of a version: requests, errors, and a histogram of latencies."""

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
        """Reads the rows ``[lower_ms, upper_ms, count]`` of ``GET /v1/stats?histograms=1``."""
        return cls({(float(lower), float(upper)): int(count) for lower, upper, count in rows})

    @classmethod
    def parse(cls, text: str) -> Histogram:
        """Reads the text of :meth:`text`."""
        return cls.of([[float(number) for number in bucket.split(":")] for bucket in text.split()])

    def text(self) -> str:
        """Returns one line: ``lower_ms:upper_ms:count``, ascending."""
        return " ".join(f"{lower!r}:{upper!r}:{count}" for (lower, upper), count in sorted(self.buckets.items()))

    @property
    def total(self) -> int:
        """Returns the number of latencies."""
        return sum(self.buckets.values())

    def plus(self, other: Histogram, sign: int = 1) -> Histogram:
        """Returns the sum of two histograms; with ``sign`` -1 the difference from an earlier one."""
        counts = {
            bucket: self.buckets.get(bucket, 0) + sign * other.buckets.get(bucket, 0)
            for bucket in self.buckets.keys() | other.buckets.keys()
        }
        return Histogram({bucket: count for bucket, count in counts.items() if count > 0})

    def bucket_at(self, rank: int) -> tuple[float, float]:
        """Returns the bucket of the ``rank``-th smallest latency, from 1 to :attr:`total`."""
        for bucket in sorted(self.buckets):
            rank -= self.buckets[bucket]
            if rank <= 0:
                return bucket
        raise ValueError("the rank is beyond the last latency")

    def quantile_ms(self, quantile: float) -> float | None:
        """Returns a quantile, rounded to the middle of its bucket; None if empty."""
        if not self.total:
            return None
        lower, upper = self.bucket_at(max(1, -int(-quantile * self.total // 1)))
        return round((lower + upper) / 2, 4)

    def above(self, limit_ms: float) -> int:
        """Returns how many latencies are certainly at or beyond a limit."""
        return sum(count for (lower, _), count in self.buckets.items() if lower >= limit_ms)


@dataclass(frozen=True)
class Counts:
    """Requests of a version in a period.

    Attributes:
        requests: Requests that were answered, failed or were refused.
        errors: Failed requests.
        latency: Latencies of answered requests.
        client_errors: Requests refused because of the client.
    """

    requests: int = 0
    errors: int = 0
    latency: Histogram = field(default_factory=Histogram)
    client_errors: int = 0

    @classmethod
    def of(cls, snapshot: Mapping[str, Any]) -> Counts:
        """Reads the counts since the server's start from a version's entry of ``GET /v1/stats?histograms=1``."""
        latency = Histogram.of(snapshot.get("latency_ms_histogram") or ())
        return cls(int(snapshot["requests"]), int(snapshot["errors"]), latency, int(snapshot["client_errors"]))

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Counts:
        """Reads the JSON object."""
        latency = Histogram.parse(value.get("latency_ms_histogram", ""))
        return cls(value.get("requests", 0), value.get("errors", 0), latency, value.get("client_errors", 0))

    def to_dict(self) -> dict[str, Any]:
        """Returns the JSON object: the counts, two percentiles for people, and the histogram in one line."""
        return {
            "requests": self.requests,
            "errors": self.errors,
            "client_errors": self.client_errors,
            "latency_ms_p50": self.latency.quantile_ms(0.5),
            "latency_ms_p99": self.latency.quantile_ms(0.99),
            "latency_ms_histogram": self.latency.text(),
        }

    def plus(self, other: Counts, sign: int = 1) -> Counts:
        """Returns the sum of two counts; with ``sign`` -1 the difference from earlier ones."""
        return Counts(
            self.requests + sign * other.requests,
            self.errors + sign * other.errors,
            self.latency.plus(other.latency, sign),
            self.client_errors + sign * other.client_errors,
        )

    @property
    def accepted(self) -> int:
        """Returns the number of requests that were not refused."""
        return self.requests - self.client_errors


def counted_since(now: Mapping[str, object], before: Mapping[str, object] | None) -> Counts:
    """Returns the counts between an earlier snapshot from :func:`snapshot_of` and an entry of the server's counts.

    If the server has restarted since the snapshot, all of its counts are new.
    """
    counts = Counts.of(now)
    if not before or before.get("server_since") != now.get("server_since"):
        return counts
    earlier = Counts.from_dict(before)
    return counts.plus(earlier, -1) if earlier.requests <= counts.requests else counts


def snapshot_of(entry: Mapping[str, object]) -> dict[str, object]:
    """Returns a version's entry of the server's counts in the form stored for :func:`counted_since`."""
    return {**Counts.of(entry).to_dict(), "server_since": entry.get("server_since")}
