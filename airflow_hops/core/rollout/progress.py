"""Progress of a rollout, stored in the model's record between two comparisons."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from airflow_hops.core.json_fields import JsonFields, omit_if_none
from airflow_hops.core.rollout.counts import Counts, counted_since, snapshot_of
from airflow_hops.core.rollout.plan import EARLY_REQUESTS, RolloutPlan
from airflow_hops.core.times import now, seconds_since


@dataclass(frozen=True)
class Progress(JsonFields):
    """The complete state of a rollout, so that any process can continue it.

    Attributes:
        began: Start of the rollout, ISO 8601 UTC.
        steps: Number of steps from this one on in which it can be rolled back.
        number: Number of the current step, from 1.
        percent: The canary's share in this step.
        since: Start of this step.
        seen: Version to its counts in this step, as from :meth:`Counts.to_dict`. They survive a restart of the server.
        last: Version to the server's counts at the last poll.
        stable_before: The stable version's counts in the previous steps.
        spent: Part of the rollout's significance that previous steps had; None in the first.
        went_back: Whether it has returned from 100% to the step before; None before.
        tests: Number of tests in this step, without the one at its end.
        tested_requests: The canary's requests at the last test.
        judged: Whether the test at the step's end was made.
        passed: Reasons for which the step was passed, in words; None if it is not passed.
        doubts: Results beyond a limit that may be chance, and labels that have not come; the rollout waits for more.
        approval: Approval of the last step: ``by``, ``note``, ``at``.
    """

    began: str
    steps: int
    number: int
    percent: int
    since: str
    seen: Mapping[str, Any] = field(default_factory=dict)
    last: Mapping[str, Any] = field(default_factory=dict)
    stable_before: Mapping[str, Any] = field(default_factory=dict)
    spent: float | None = omit_if_none()
    went_back: bool | None = omit_if_none()
    tests: int = 0
    tested_requests: int = 0
    judged: bool = False
    passed: tuple[str, ...] | None = None
    doubts: tuple[str, ...] = ()
    approval: Mapping[str, Any] | None = None

    @classmethod
    def begin(cls, plan: RolloutPlan, percent: int, baseline: Mapping[str, object]) -> Progress:
        """Returns the state of a rollout that begins now.

        ``baseline`` has the server's counts by version before the canary's first request, from :func:`snapshot_of`.
        """
        return cls(now(), plan.steps_from(percent), 1, percent, now(), last=baseline)

    def next_step(self, plan: RolloutPlan, percent: int, stable: int) -> Progress:
        """Returns the state of the next step, which begins now."""
        stable_counts = Counts.from_dict(self.stable_before).plus(self.counts(stable))
        return replace(
            self,
            steps=plan.steps_from(percent),
            spent=(self.spent or 0.0) + (0.0 if self.is_alone else self._share),
            number=self.number + 1,
            percent=percent,
            since=now(),
            seen={},
            stable_before=stable_counts.to_dict(),
            tests=0,
            tested_requests=0,
            judged=False,
            passed=None,
            doubts=(),
        )

    def after(self, counted: Mapping[int, Mapping[str, object]], *, of_step: bool = False) -> Progress:
        """Returns the state with the server's counts by version since the last poll added, or those of the step."""
        if of_step:
            return replace(self, seen={str(version): Counts.of(entry).to_dict() for version, entry in counted.items()})
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
        """Returns the counts to compare the canary with; at 100% they include those of the previous steps."""
        counts = self.counts(version)
        return counts.plus(Counts.from_dict(self.stable_before)) if self.percent == 100 else counts

    @property
    def elapsed_s(self) -> float:
        """Returns the seconds since the step began."""
        return seconds_since(self.since)

    @property
    def requests_to_test(self) -> int:
        """Returns the number of the canary's requests at which it is tested, even before the step's end."""
        return 2 * self.tested_requests if self.tested_requests else EARLY_REQUESTS

    def requests_needed(self, plan: RolloutPlan) -> int:
        """Returns the minimum number of the canary's requests in this step.

        At 100% it is 0, since the stable version, which the canary is compared with, gets no more requests.
        """
        return 0 if self.is_alone else plan.min_requests

    def tested(self, requests: int, *, at_end: bool) -> tuple[Progress, int | None]:
        """Records a test; returns its number among the early ones, or None for the test at the step's end."""
        if at_end and not self.judged:
            return replace(self, judged=True, tested_requests=requests), None
        return replace(self, tests=self.tests + 1, tested_requests=requests), self.tests + 1

    @property
    def is_alone(self) -> bool:
        """Whether the canary has all the traffic, so that the stable version gets no more requests."""
        return self.percent == 100 and self.number > 1

    @property
    def _share(self) -> float:
        # One more than the steps, so that something is left if the canary goes back, or a person sets a share.
        return (1 - (self.spent or 0.0)) / (self.steps + 1)

    def significance(self, total: float, early: int | None) -> float:
        """Returns the significance of one test, so that all tests of a rollout together stay within ``total``.

        The steps that are left get equal parts of what is left (Bonferroni). Half of a step's part is for the test at
        its end. The other half is for early tests and, if the test at the end was in doubt, for later ones: they are
        made whenever the canary's requests have doubled, and the n-th gets the 2^-n-th part. By Boole's inequality, the
        sum bounds the probability of any false alarm, however the tests depend on each other.

        Args:
            total: Significance of the whole rollout.
            early: Number of the test among those of doubled requests, from 1; None for the test at the step's end.
        """
        return total * self._share / 2 * (1.0 if early is None else 2.0**-early)
