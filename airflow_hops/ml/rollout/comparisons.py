"""Compares the requests of a canary with those of the stable version: errors, refusals and latency.

Each comparison returns a finding with its numbers, and whether it is a reason to roll back, to wait for more requests,
or neither. A difference above its limit counts if its p-value is at most the significance; otherwise it may be chance,
and only causes doubt.

The server draws the version of each request at random, so if both versions answer alike, every assignment of the
requests to the versions was equally probable: Fisher's test and permutation tests over requests are exact whatever
clients send. Rows of one request are assigned together, and so count as one.
"""

from __future__ import annotations

from typing import Any

from scipy import stats

from airflow_hops.core.rollout.counts import Counts
from airflow_hops.core.rollout.decision import BAD, DOUBT, NOT_JUDGED, OK, UNKNOWN, CanaryFinding, FindingVerdict
from airflow_hops.core.rollout.plan import Limits

OFTEN = 0.05
"""A greater p-value does not delay the decision: most clients make some mistakes."""


def compare_errors(canary: Counts, stable: Counts, limits: Limits, significance: float) -> CanaryFinding:
    """Tests whether the canary fails more often: Fisher's exact test of two proportions, one-sided.

    Requests refused because of the client's mistake are left out, since no version could fail them. If the stable
    version accepted no request, the canary's share is tested against the limit (exact binomial test).
    """
    shares = (canary.errors, canary.accepted), (stable.errors, stable.accepted)
    numbers = compare_shares("errors", *shares, limits, significance)
    increase, p_value = numbers["increase"], numbers["p_value"]
    if not canary.requests:
        return CanaryFinding("errors", NOT_JUDGED, "the canary was not asked", numbers)
    if not canary.accepted:
        return CanaryFinding(
            "errors", UNKNOWN, f"all {canary.requests} requests were refused because of errors in the requests", numbers
        )
    rates = f"{canary.errors} of {canary.accepted} requests failed, {stable.errors} of {stable.accepted} at the stable"
    verdict = verdict_of(increase > limits.max_error_increase, p_value <= significance)
    return CanaryFinding("errors", verdict, f"{rates} version (p = {p_value:.2g})", numbers)


def compare_refusals(canary: Counts, stable: Counts, limits: Limits, significance: float) -> CanaryFinding:
    """Tests whether the canary refuses more requests as the client's mistake (Fisher's exact test).

    Clients make mistakes with any version, so a difference that may be chance does not delay the decision. A
    significant difference means that the canary expects other inputs. If the stable version had no requests, a share of
    refusals above the limit (exact binomial test) causes doubt.
    """
    shares = (canary.client_errors, canary.requests), (stable.client_errors, stable.requests)
    numbers = compare_shares("client_errors", *shares, limits, significance)
    increase, p_value = numbers["increase"], numbers["p_value"]
    if not canary.requests:
        return CanaryFinding("refusals", NOT_JUDGED, "the canary was not asked", numbers)
    text = (
        f"{canary.client_errors} of {canary.requests} requests refused because of errors in the requests, "
        f"{stable.client_errors} of {stable.requests} at the stable version (p = {p_value:.2g})"
    )
    if p_value > max(significance, OFTEN):
        return CanaryFinding("refusals", OK, text, numbers)
    verdict = verdict_of(increase > limits.max_error_increase, bool(stable.requests) and p_value <= significance)
    return CanaryFinding("refusals", verdict, text, numbers)


def compare_latency(canary: Counts, stable: Counts, limits: Limits, significance: float) -> list[CanaryFinding]:
    """Tests median and 99th percentile against a limit from the stable version's, without assuming a distribution.

    The limit is the stable quantile times ``max_latency_ratio``, or plus ``latency_tolerance_ms`` if that is more.
    Half of the significance bounds the stable quantile from above by an order statistic. The other half is for the
    exact binomial test of how many of the canary's latencies exceed the resulting limit.
    """
    return [
        _compare_quantile(name, quantile, canary, stable, limits, significance)
        for name, quantile in (("latency_p50", 0.5), ("latency_p99", 0.99))
    ]


def _compare_quantile(
    name: str, quantile: float, canary: Counts, stable: Counts, limits: Limits, significance: float
) -> CanaryFinding:
    ours, theirs = canary.latency.quantile_ms(quantile), stable.latency.quantile_ms(quantile)
    if ours is None or theirs is None:
        return CanaryFinding(name, NOT_JUDGED, "no latencies of both versions")

    def limit_ms(latency_ms: float) -> float:
        return max(latency_ms * limits.max_latency_ratio, latency_ms + limits.latency_tolerance_ms)

    numbers: dict[str, Any] = {
        "canary_ms": ours,
        "stable_ms": theirs,
        "ratio": ours / max(theirs, 1e-6),
        "max_latency_ratio": limits.max_latency_ratio,
        "latency_tolerance_ms": limits.latency_tolerance_ms,
        "significance": significance,
    }
    text = f"{ours:.3g} ms, {theirs:.3g} ms at the stable version"
    rank = quantile_bound_rank(stable.latency.total, quantile, significance / 2)
    # Also not judged if the canary has too few requests for a significant result, even if all exceed the limit.
    size = canary.latency.total
    if rank is None or binomial_at_least(size, size, 1 - quantile) > significance / 2:
        text += f" (too few requests to judge, {size} and {stable.latency.total})"
        return CanaryFinding(name, NOT_JUDGED, text, numbers)
    bound_ms = limit_ms(stable.latency.bucket_at(rank)[1])
    beyond = canary.latency.above(bound_ms)
    p_value = binomial_at_least(beyond, size, 1 - quantile)
    numbers |= {"limit_ms": bound_ms, "canary_beyond_limit": beyond, "p_value": p_value}
    verdict = verdict_of(ours > limit_ms(theirs), p_value <= significance / 2)
    return CanaryFinding(
        name, verdict, f"{text} ({beyond} of {size} beyond {bound_ms:.3g} ms, p = {p_value:.2g})", numbers
    )


def binomial_at_least(hits: int, trials: int, rate: float) -> float:
    """Probability of at least ``hits`` in ``trials`` at a rate (exact binomial test, one-sided)."""
    return float(stats.binom.sf(hits - 1, trials, rate))


def quantile_bound_rank(size: int, quantile: float, significance: float) -> int | None:
    """Rank (from 1) of the lowest order statistic that is below a quantile with at most probability ``significance``.

    None with too few observations. Source: Conover, W. J., Practical Nonparametric Statistics, 3rd edition
    (1999), 3.2, confidence intervals for a quantile.
    """
    if not size:
        return None
    rank = int(stats.binom.isf(significance, size, quantile)) + 1
    return rank if rank <= size else None


def compare_shares(
    what: str, canary: tuple[int, int], stable: tuple[int, int], limits: Limits, significance: float
) -> dict[str, Any]:
    """Formats two shares of requests, each given as the count of ``what`` and the count of all.

    The p-value is Fisher's exact test's; without stable requests, that of a binomial test against the limit.
    """
    (ours, of_ours), (theirs, of_theirs) = canary, stable
    if of_theirs:
        table = [[ours, of_ours - ours], [theirs, of_theirs - theirs]]
        p_value = float(stats.fisher_exact(table, alternative="greater").pvalue)
    else:
        p_value = binomial_at_least(ours, of_ours, limits.max_error_increase)
    return {
        f"canary_{what}": ours,
        "canary_requests": of_ours,
        f"stable_{what}": theirs,
        "stable_requests": of_theirs,
        "increase": ours / max(of_ours, 1) - theirs / max(of_theirs, 1),
        "p_value": p_value,
        "max_error_increase": limits.max_error_increase,
        "significance": significance,
    }


def verdict_of(beyond: bool, beyond_chance: bool) -> FindingVerdict:
    """Returns the verdict on a difference that may be beyond its limit, and beyond what chance explains."""
    if not beyond:
        return OK
    return BAD if beyond_chance else DOUBT
