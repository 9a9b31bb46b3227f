"""The progress of a rollout, as the model's record keeps it between two looks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from airflow_hops.core.contract.json_fields import JsonFields
from airflow_hops.core.contract.rollout.counts import Counts, counted_since, snapshot_of
from airflow_hops.core.contract.rollout.plan import EARLY_REQUESTS, Plan, significance_of
from airflow_hops.core.contract.times import now, seconds_since


@dataclass(frozen=True)
class Progress(JsonFields):
    """The state of a rollout. All of it is in the record, so that whoever looks next goes on from there.

    Attributes:
        began: When the rollout began, ISO 8601 UTC.
        steps: How many steps it was planned to have then.
        number: Number of the step under way, from 1.
        percent: The canary's share in it.
        since: When it began.
        seen: Version to what it was asked in this step, as :meth:`Counts.to_dict` gives it. It outlives the server
            that counted it.
        last: Version to what the server had counted at the last look.
        stable_before: What the stable version showed in the step before.
        tests: How many tests were held in this step beside the one at its end.
        tested_requests: The canary's requests at the last one.
        judged: Whether the test at the step's end was held.
        passed: What spoke for the canary then, in words; None while the step is not passed.
        doubts: What did not, though it may be chance: more requests are waited for.
        approval: Who approved the last step: ``by``, ``note``, ``at``.
    """

    began: str
    steps: int
    number: int
    percent: int
    since: str
    seen: Mapping[str, Any] = field(default_factory=dict)
    last: Mapping[str, Any] = field(default_factory=dict)
    stable_before: Mapping[str, Any] = field(default_factory=dict)
    tests: int = 0
    tested_requests: int = 0
    judged: bool = False
    passed: tuple[str, ...] | None = None
    doubts: tuple[str, ...] = ()
    approval: Mapping[str, Any] | None = None

    @classmethod
    def begin(cls, plan: Plan, percent: int, baseline: Mapping[str, Any]) -> Progress:
        """A rollout that begins now.

        Args:
            plan: What it is to do.
            percent: The share that the canary has.
            baseline: Version to what the server had counted before the canary's first request, as :func:`snapshot_of`
                keeps it.
        """
        return cls(now(), plan.steps_from(percent), 1, percent, now(), last=baseline)

    def next_step(self, percent: int, stable: int) -> Progress:
        """The step after this one, which begins now."""
        return replace(
            self,
            number=self.number + 1,
            percent=percent,
            since=now(),
            seen={},
            stable_before=self.counts(stable).to_dict(),
            tests=0,
            tested_requests=0,
            judged=False,
            passed=None,
            doubts=(),
        )

    def after(self, counted: Mapping[int, Mapping[str, Any]]) -> Progress:
        """With what the server has counted since the last look added.

        Args:
            counted: Version to its counts, of :meth:`airflow_hops.ml.model_server.ModelServer.counts`.
        """
        seen = {
            str(version): self.counts(version).plus(counted_since(entry, self.last.get(str(version)))).to_dict()
            for version, entry in counted.items()
        }
        last = {str(version): snapshot_of(entry) for version, entry in counted.items()}
        return replace(self, seen={**self.seen, **seen}, last={**self.last, **last})

    def counts(self, version: int) -> Counts:
        """Returns the counts of a version in this step."""
        return Counts.from_dict(self.seen.get(str(version), {}))

    def stable_counts(self, version: int) -> Counts:
        """Returns the counts to compare the canary with: at 100%, also the stable ones of the step before."""
        counts = self.counts(version)
        return counts.plus(Counts.from_dict(self.stable_before)) if self.percent == 100 else counts

    @property
    def elapsed_s(self) -> float:
        """Seconds since the step began."""
        return seconds_since(self.since)

    @property
    def requests_to_test(self) -> int:
        """The canary's requests at which it is tested, whether or not the step is over."""
        return 2 * self.tested_requests if self.tested_requests else EARLY_REQUESTS

    def requests_needed(self, plan: Plan) -> int:
        """The canary's requests without which the step is not over.

        At 100% there are none: the stable version, which it was compared with, is asked no more.
        """
        return 0 if self.percent == 100 and self.number > 1 else plan.min_requests

    def tested(self, requests: int, *, at_end: bool) -> tuple[Progress, int | None]:
        """Notes a test; returns its number among the early ones beside it, None for the one at the step's end."""
        if at_end and not self.judged:
            return replace(self, judged=True, tested_requests=requests), None
        return replace(self, tests=self.tests + 1, tested_requests=requests), self.tests + 1

    def significance(self, total: float, early: int | None) -> float:
        """The significance of a test of this step."""
        return significance_of(total, self.steps, early)
