"""Compares a canary with the stable version: errors, latency, predictions. Numbers in, findings out.

Each comparison says what it found, with the numbers behind it, and whether that is a reason to roll back.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

P99_REQUESTS = 1000
"""Requests below which a 99th percentile is the worse of a handful of values, and is not judged."""
PREDICTIONS_ROWS = 20
"""Rows below which nothing is said about predictions."""


@dataclass(frozen=True)
class Limits:
    """When a canary is rolled back.

    Attributes:
        max_error_increase: Increase of the share of failed requests, 0 to 1, that is tolerated whatever its cause.
        significance: An increase beyond that counts when Fisher's exact test gives chance at most this probability.
        max_latency_ratio: Median (and 99th percentile) latency over the stable version's that is tolerated.
        latency_tolerance_ms: Increase in milliseconds that is tolerated whatever the ratio.
    """

    max_error_increase: float = 0.01
    significance: float = 0.01
    max_latency_ratio: float = 2.0
    latency_tolerance_ms: float = 10.0


@dataclass(frozen=True)
class Counts:
    """What a server counted of a version while it was watched.

    Attributes:
        requests: Requests answered or failed.
        errors: Those that failed.
        latency_ms_p50: Median latency, or None.
        latency_ms_p99: 99th percentile, or None.
    """

    requests: int = 0
    errors: int = 0
    latency_ms_p50: float | None = None
    latency_ms_p99: float | None = None

    @classmethod
    def since(cls, now: Mapping[str, Any], before: Mapping[str, Any]) -> Counts:
        """The counts since a baseline; a server that started anew counts from its start.

        Latencies are those that the server has counted since it started.
        """
        same_server = before.get("server_since") == now.get("server_since")
        base = before if same_server and before.get("requests", 0) <= now["requests"] else {}
        return cls(
            requests=now["requests"] - base.get("requests", 0),
            errors=now["errors"] - base.get("errors", 0),
            latency_ms_p50=now.get("latency_ms_p50"),
            latency_ms_p99=now.get("latency_ms_p99"),
        )

    @property
    def error_rate(self) -> float:
        """Share of the requests that failed."""
        return self.errors / self.requests if self.requests else 0.0


@dataclass(frozen=True)
class Finding:
    """What one comparison found.

    Attributes:
        what: ``errors``, ``latency_p50``, ``latency_p99`` or ``predictions``.
        bad: Whether it is a reason to roll back.
        text: In words.
        numbers: The numbers behind it.
    """

    what: str
    bad: bool
    text: str
    numbers: Mapping[str, Any] = field(default_factory=dict)


def compare_errors(canary: Counts, stable: Counts, limits: Limits) -> Finding:
    """Two proportions by Fisher's exact test, one-sided: does the canary fail more often?

    Fisher, R. A. (1922), On the interpretation of χ² from contingency tables, and the calculation of P.
    """
    increase = canary.error_rate - stable.error_rate
    p_value = fisher_exact_greater(canary.errors, canary.requests, stable.errors, stable.requests)
    numbers = {
        "canary_errors": canary.errors,
        "canary_requests": canary.requests,
        "stable_errors": stable.errors,
        "stable_requests": stable.requests,
        "increase": increase,
        "p_value": p_value,
        "max_error_increase": limits.max_error_increase,
        "significance": limits.significance,
    }
    rates = f"{canary.errors} of {canary.requests} requests failed, {stable.errors} of {stable.requests} at the stable"
    # With no stable request to compare with, the limit alone decides.
    bad = increase > limits.max_error_increase and (p_value <= limits.significance or not stable.requests)
    return Finding("errors", bad, f"{rates} version (p = {p_value:.2g})", numbers)


def compare_latency(canary: Counts, stable: Counts, limits: Limits) -> list[Finding]:
    """Median and 99th percentile: ratio beyond the limit and increase beyond the tolerance is bad."""
    findings = []
    for name, percentile in (("latency_p50", "latency_ms_p50"), ("latency_p99", "latency_ms_p99")):
        ours, theirs = getattr(canary, percentile), getattr(stable, percentile)
        if ours is None or theirs is None:
            findings.append(Finding(name, False, "not judged: no latency of both versions"))
            continue
        ratio = ours / max(theirs, 1e-6)
        numbers = {
            "canary_ms": ours,
            "stable_ms": theirs,
            "ratio": ratio,
            "max_latency_ratio": limits.max_latency_ratio,
            "latency_tolerance_ms": limits.latency_tolerance_ms,
        }
        text = f"{ours:.3g} ms, {theirs:.3g} ms at the stable version"
        fewest = min(canary.requests, stable.requests)
        if name == "latency_p99" and fewest < P99_REQUESTS:
            text += f" (not judged: {fewest} requests, {P99_REQUESTS} needed)"
            findings.append(Finding(name, False, text, numbers))
            continue
        bad = ratio > limits.max_latency_ratio and ours - theirs > limits.latency_tolerance_ms
        findings.append(Finding(name, bad, text, numbers))
    return findings


def compare_predictions(canary: np.ndarray, stable: np.ndarray, output: str) -> Finding:
    """Looks for predictions that cannot be right: not finite, or all the same where the stable version's differ.

    A distribution that differs is on record (two-sample Kolmogorov–Smirnov), and is no reason by itself: a better
    model predicts differently.

    Args:
        canary: The canary's predictions, flat.
        stable: The stable version's.
        output: Name of the output.
    """
    numbers: dict[str, Any] = {"output": output, "canary_rows": int(canary.size), "stable_rows": int(stable.size)}
    if canary.size < PREDICTIONS_ROWS:
        text = f"not judged: {canary.size} captured rows of the canary, {PREDICTIONS_ROWS} needed"
        return Finding("predictions", False, text, numbers)
    finite = np.isfinite(canary)
    if not finite.all():
        numbers["not_finite"] = int((~finite).sum())
        text = f"{numbers['not_finite']} of {canary.size} values of {output!r} are NaN or infinite"
        return Finding("predictions", True, text, numbers)
    numbers |= {"canary_mean": float(canary.mean()), "canary_std": float(canary.std())}
    stable = stable[np.isfinite(stable)]
    if stable.size < PREDICTIONS_ROWS:
        constant = bool(np.ptp(canary) == 0)
        text = f"{output!r} is {canary[0]:.6g} in all {canary.size} rows" if constant else f"mean {canary.mean():.4g}"
        return Finding("predictions", constant, text, numbers)
    statistic, p_value = kolmogorov_smirnov(canary, stable)
    numbers |= {
        "stable_mean": float(stable.mean()),
        "stable_std": float(stable.std()),
        "ks_statistic": statistic,
        "ks_p_value": p_value,
    }
    if np.ptp(canary) == 0 and np.ptp(stable) > 0:
        text = f"{output!r} is {canary[0]:.6g} in all {canary.size} rows; the stable version's values differ"
        return Finding("predictions", True, text, numbers)
    text = (
        f"mean {canary.mean():.4g}, {stable.mean():.4g} at the stable version; Kolmogorov–Smirnov {statistic:.3f} "
        f"(p = {p_value:.2g}), for the record"
    )
    return Finding("predictions", False, text, numbers)


def fisher_exact_greater(hits: int, trials: int, other_hits: int, other_trials: int) -> float:
    """Probability of at least ``hits`` in the first group, were both groups' rates the same (margins fixed)."""
    total, total_hits = trials + other_trials, hits + other_hits
    if not trials or not other_trials or not total_hits:
        return 1.0
    logs = [
        _log_choose(total_hits, k) + _log_choose(total - total_hits, trials - k) - _log_choose(total, trials)
        for k in range(hits, min(trials, total_hits) + 1)
        if trials - k <= total - total_hits
    ]
    return min(1.0, math.fsum(math.exp(value) for value in logs))


def kolmogorov_smirnov(first: np.ndarray, second: np.ndarray) -> tuple[float, float]:
    """The two-sample statistic and its asymptotic p-value.

    Press et al., Numerical Recipes, 3rd edition, 14.3.3 (Stephens's correction for small samples).
    """
    first, second = np.sort(first), np.sort(second)
    values = np.concatenate([first, second])
    below_first = np.searchsorted(first, values, side="right") / first.size
    below_second = np.searchsorted(second, values, side="right") / second.size
    statistic = float(np.abs(below_first - below_second).max())
    effective = math.sqrt(first.size * second.size / (first.size + second.size))
    scaled = (effective + 0.12 + 0.11 / effective) * statistic
    if scaled < 0.2:  # the series does not converge there; the probability is 1 to twelve digits
        return statistic, 1.0
    terms = [2 * (-1) ** (k - 1) * math.exp(-2 * (k * scaled) ** 2) for k in range(1, 101)]
    return statistic, min(1.0, max(0.0, math.fsum(terms)))


def _log_choose(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
