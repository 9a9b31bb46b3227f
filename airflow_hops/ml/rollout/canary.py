"""Polls a canary: evaluates the record and the server's counts, and takes the step that is due.

A poll writes a decision to the model's record before it applies it, so that the next poll, by any process, can apply it
again. The traffic always has shares from the record, whenever a process dies.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from airflow_hops.core.errors import BadInput, HopsError
from airflow_hops.core.models.model_record import ModelRecord, ServedVersion, by_whom, read_record, write_record
from airflow_hops.core.performance import PerformanceOptions
from airflow_hops.core.rollout.decision import (
    BAD,
    DOUBT,
    LEFT,
    NOT_JUDGED,
    PROMOTED,
    ROLLED_BACK,
    STEP,
    UNKNOWN,
    CanaryFinding,
    RolloutDecision,
)
from airflow_hops.core.rollout.plan import Limits, RolloutPlan
from airflow_hops.core.rollout.progress import Progress
from airflow_hops.core.times import now, seconds_since
from airflow_hops.ml.model_server import ModelServer
from airflow_hops.ml.rollout.captured import ServedPair
from airflow_hops.ml.rollout.comparisons import compare_errors, compare_latency, compare_refusals
from airflow_hops.ml.rollout.decision import Outcome, Waiting, enforce, recorded_decision, settle
from airflow_hops.ml.step.context import StepContext

# States of a rollout, all in the model's record: step (percent, counts so far) → passed → next step … → question
# (approval) → promoted; or rolled_back, or left. A poll holds ModelServer.exclusive() from reading the record to
# applying the outcome.
# - Order of a poll: read the record; add a person's answer; repair the server (config, shares); read its counts; test;
#   write the record; apply. A kill before the write loses only the counts since the last poll, which the server still
#   has; a kill after it is repaired by the next poll, because enforce() and settle() are idempotent.
# - Counts come from the server and start at 0 when it restarts. Progress adds the differences, and recognizes a restart
#   by the server's start time.
# - A person may change shares or decide meanwhile: another share starts a new step; a decision ends the rollout, and
#   poll() only applies it.
# - Only comparisons of requests at the same time roll back: at 100% there are none, so a canary that looks worse than
#   the stable version did before goes back one step, and is compared there.
# - Each test costs significance, so tests are planned by requests (progress.tested), not by polls: polling more often
#   does not make a false alarm more likely.

_AGAIN_S = 5.0
"""Seconds until a decision is applied again after MLflow or the server was unavailable."""


@dataclass(frozen=True)
class CanaryRollout:
    """Canary of one model, with its plan and limits."""

    context: StepContext
    server: ModelServer
    model_name: str
    version: int
    plan: RolloutPlan
    limits: Limits
    labels: PerformanceOptions | None = None

    def poll(self, answer: Mapping[str, object] | None = None) -> Outcome:
        """Takes the step that is due.

        Args:
            answer: A person's answer to the question: ``approved``, ``by``, ``note``, ``at``.
        """
        with self.server.exclusive(self.model_name):
            record = read_record(self.context.store, self.model_name)
            record.check_owner(self.model_name, self.context.spec.producer.dag_id)
            challenger, champion = record.challenger, record.champion
            if challenger is None or champion is None or challenger.version != self.version:
                decision = recorded_decision(record, self.model_name, self.version)
            else:
                outcome = self._look(record, champion, challenger, answer)
                if not isinstance(outcome, RolloutDecision):
                    return outcome
                decision = outcome
            return self._settled(decision)

    def _settled(self, decision: RolloutDecision) -> Outcome:
        """Applies a recorded decision; waits if MLflow or the server is unavailable."""
        record = read_record(self.context.store, self.model_name)
        try:
            settle(self.context, self.server, self.model_name, self.version, record, decision, self.plan.keep_versions)
        except BadInput:
            raise
        except HopsError as error:
            event = record.last_event(self.version)
            if event is None or seconds_since(event.at) > self.plan.timeout_s:
                raise
            return Waiting(f"version {self.version} is {decision.decision}, but {error}", time.time() + _AGAIN_S)
        return decision

    def _look(
        self, record: ModelRecord, champion: ServedVersion, challenger: ServedVersion, answer: Mapping[str, Any] | None
    ) -> Outcome:
        step = _Step(self, record, champion, challenger, self._progress(champion, challenger))
        if answer is not None:
            if not answer["approved"]:
                return step.end(ROLLED_BACK, (f"rejected by {_said(answer)}",))
            step = step.approved(answer)
        if step.record != record:
            self._write(step.record)
        try:
            # Repairs versions after a server's restart, and shares after a crash.
            self.server.serve_again(self.model_name)
            enforce(self.server, self.model_name, step.record)
            error = self.server.last_error(self.model_name, self.version)
            counts = self.server.counts(self.model_name, step.since)
            step = replace(step, progress=step.progress.after(counts, of_step=not self.server.has_stats))
            if error:
                return step.end(ROLLED_BACK, (f"the server has lost it: {error}",))
            return step.go_on(now_due=answer is not None)
        except BadInput:
            raise
        except HopsError as away:
            return step.wait(str(away))

    def _progress(self, champion: ServedVersion, challenger: ServedVersion) -> Progress:
        if challenger.rollout is None:
            return Progress.begin(self.plan, challenger.traffic_percent, challenger.baseline)
        progress = challenger.rollout
        if progress.percent != challenger.traffic_percent:  # a person has set another share: a separate step
            return replace(progress.next_step(self.plan, challenger.traffic_percent, champion.version), approval=None)
        return progress

    def _write(self, record: ModelRecord) -> None:
        write_record(self.context.store, self.model_name, record)


@dataclass(frozen=True)
class _Step:
    """Current step of the traffic."""

    rollout: CanaryRollout
    last: ModelRecord
    champion: ServedVersion
    challenger: ServedVersion
    progress: Progress

    @property
    def record(self) -> ModelRecord:
        """Record with the step's progress."""
        return replace(self.last, challenger=replace(self.challenger, rollout=self.progress))

    def approved(self, answer: Mapping[str, object]) -> _Step:
        """Records the approval of the last step."""
        if self.progress.approval:
            return self
        why = f"100% approved by {_said(answer)}"
        last = self.last.after("approved", self.challenger.version, why, by=answer["by"], note=answer["note"])
        return replace(self, last=last, progress=replace(self.progress, approval=dict(answer)))

    @property
    def since(self) -> str:
        """Start of the step; requests before the first poll belong to the first step."""
        return self.challenger.since if self.progress.number == 1 else self.progress.since

    def go_on(self, *, now_due: bool = False) -> Outcome:
        """Runs a test if one is due, and starts the next step if this one is passed.

        ``now_due`` requests a test in any case, after a time without polls.
        """
        plan, progress = self.rollout.plan, self.progress
        canary = progress.counts(self.challenger.version)
        over = canary.requests >= progress.requests_needed(plan) and progress.elapsed_s >= plan.bake_s(progress.percent)
        is_late = over and progress.elapsed_s >= plan.timeout_s
        pair, awaited = self._pair, tuple[str, ...]()
        if pair.limits.wait_for_labels and over and not (is_late or progress.judged):
            labelled = pair.labelled(self.rollout.context, self.rollout.server, self.rollout.model_name)
            pair = replace(pair, known=labelled)
            awaited = tuple(each.reason for each in pair.compare_labels(labelled, 1.0) if each.verdict == UNKNOWN)
        over = over and not awaited
        at_end = over and not progress.judged
        # What may be chance delays a step, but ends no rollout; and without a stable version it is never settled.
        waits_for = {UNKNOWN} if is_late or progress.is_alone else {UNKNOWN, DOUBT}
        findings: tuple[CanaryFinding, ...] = ()
        step = self
        if at_end or now_due or is_late or canary.requests >= progress.requests_to_test:
            progress, early = progress.tested(canary.requests, at_end=at_end)
            significance = progress.significance(self.rollout.limits.significance, early)
            findings = self._compare(significance, pair, everything=over)
            doubts = tuple(finding.reason for finding in findings if finding.verdict in waits_for)
            if over and not doubts:
                progress = replace(progress, passed=tuple(finding.reason for finding in findings))
            step = replace(self, progress=replace(progress, doubts=doubts if over else ()))
            if bad := tuple(finding.reason for finding in findings if finding.verdict == BAD):
                return step._go_back(bad, findings) if progress.is_alone else step.end(ROLLED_BACK, bad, findings)
        if step.progress.passed is not None:
            return step._pass(step.progress.passed, findings)
        if step.progress.elapsed_s >= plan.timeout_s:
            asked = f"the canary was asked {canary.requests} times, {progress.requests_needed(plan)} needed"
            return step._time_out("; ".join(step.progress.doubts) or asked)
        return replace(step, progress=replace(step.progress, doubts=awaited or step.progress.doubts)).wait()

    def _pass(self, reasons: tuple[str, ...], findings: tuple[CanaryFinding, ...]) -> Outcome:
        """Starts the next step, asks for approval, or promotes."""
        plan, progress = self.rollout.plan, self.progress
        following = plan.after(progress.percent)
        if following == 100 and plan.approval and not progress.approval:
            self.rollout._write(self.record)
            return self._numbers_in_words(reasons)
        if following is None or (following == 100 and plan.bake_s(100) == 0):
            return self.end(PROMOTED, reasons, findings)
        why = f"step {progress.percent}% passed, on to {following}%: " + "; ".join([self._asked(), *reasons])
        return self._begun(following, why, reasons, findings)._take_effect()

    def _go_back(self, bad: tuple[str, ...], findings: tuple[CanaryFinding, ...]) -> Outcome:
        """Returns from 100% to the share of the step before; the second time, the rollout ends there."""
        percent = max((step for step in self.rollout.plan.steps if step < 100), default=50)
        why = f"looks worse at 100%, back to {percent}%: " + "; ".join([self._asked(), *bad])
        begun = replace(self, progress=replace(self.progress, went_back=True))._begun(percent, why, bad, findings)
        if not self.progress.went_back:
            return begun._take_effect()
        return begun.end(LEFT, (f"looked worse at 100% twice, and not at {percent}%; a person must decide", *bad))

    def _begun(self, percent: int, why: str, reasons: tuple[str, ...], findings: tuple[CanaryFinding, ...]) -> _Step:
        """Records the beginning of a step with another share."""
        begun = replace(
            self,
            last=replace(self.last, champion=replace(self.champion, traffic_percent=100 - percent)).after(
                "step",
                self.challenger.version,
                why,
                traffic={self.champion.version: 100 - percent, self.challenger.version: percent},
                by=self._by,
                decision=self._decision(STEP, reasons, findings),
            ),
            champion=replace(self.champion, traffic_percent=100 - percent),
            challenger=replace(self.challenger, traffic_percent=percent),
            progress=self.progress.next_step(self.rollout.plan, percent, self.champion.version),
        )
        self.rollout._write(begun.record)
        self.rollout.context.progress(percent / 100, why)
        return begun

    def _take_effect(self) -> Waiting:
        """Sets the step's shares."""
        try:
            enforce(self.rollout.server, self.rollout.model_name, self.record)
        except HopsError as away:  # the decision is recorded: the next poll applies it
            return self._waiting(str(away))
        return self._waiting(f"canary {self.challenger.version} gets {self.progress.percent}%")

    def _time_out(self, why: str) -> RolloutDecision:
        plan = self.rollout.plan
        decision = ROLLED_BACK if plan.on_timeout == "roll_back" else LEFT
        return self.end(decision, (f"not judged within {plan.timeout_s:g} s: {why}",))

    def wait(self, away: str = "") -> Outcome:
        """Records the progress and returns the time of the next poll; ends the rollout if the server is away too long.

        ``away`` is the error if the counts could not be read.
        """
        if away and self.progress.passed is None and self.progress.elapsed_s >= self.rollout.plan.timeout_s:
            return self._time_out(away)
        self.rollout._write(self.record)
        return self._waiting(away)

    def _waiting(self, text: str = "") -> Waiting:
        plan, progress = self.rollout.plan, self.progress
        left_s = min(plan.timeout_s - progress.elapsed_s, plan.longest_wait_s)
        bake_s = plan.bake_s(progress.percent)
        needed, wanted = progress.requests_needed(plan), progress.requests_to_test
        if not progress.judged and progress.elapsed_s < bake_s:
            left_s = min(left_s, bake_s - progress.elapsed_s)
        elif not progress.judged and not progress.doubts:
            wanted = min(wanted, needed)
        last = progress.last.get(str(self.challenger.version), {})
        missing = wanted - progress.counts(self.challenger.version).requests
        asked = (
            f"canary {self.challenger.version} at {progress.percent}%: {self._asked()}; needed: {needed} requests in "
            f"{bake_s:g} s"
        )
        return Waiting(
            text=text or "; ".join([asked, *(f"in doubt: {doubt}" for doubt in progress.doubts)]),
            until=time.time() + max(left_s, 0.0),
            requests=last.get("requests", 0) + max(missing, 1),
            server_since=last.get("server_since"),
        )

    def end(self, decision: str, reasons: tuple[str, ...], findings: tuple[CanaryFinding, ...] = ()) -> RolloutDecision:
        """Records a decision; the caller applies it."""
        ended = self._decision(decision, reasons, findings)
        version = self.challenger.version
        facts = {"by": self._by, "decision": ended, "fingerprint": self.challenger.fingerprint}
        why = f"at {self.progress.percent}%: " + "; ".join(reasons)
        if decision == PROMOTED:
            champion = replace(self.challenger, since=now(), traffic_percent=100, baseline={}, rollout=None)
            record = replace(self.last, champion=champion, challenger=None)
            record = record.after(PROMOTED, version, why, traffic={version: 100}, **facts)
        elif decision == ROLLED_BACK:
            record = replace(self.last, champion=replace(self.champion, traffic_percent=100), challenger=None)
            record = record.after(ROLLED_BACK, version, why, traffic={self.champion.version: 100}, **facts)
        else:  # the next rollout starts again, with the current share
            record = replace(self.last, challenger=replace(self.challenger, rollout=None))
            record = record.after(LEFT, version, why, **facts)
        self.rollout._write(record)
        return ended

    def _decision(
        self, decision: str, reasons: tuple[str, ...], findings: tuple[CanaryFinding, ...]
    ) -> RolloutDecision:
        progress = self.progress
        return RolloutDecision(
            decision=decision,
            reasons=reasons,
            findings=findings,
            percent=progress.percent,
            canary=progress.counts(self.challenger.version),
            stable=progress.stable_counts(self.champion.version),
            watched_s=seconds_since(progress.began),
        )

    @property
    def _by(self) -> dict[str, Any]:
        return by_whom(self.rollout.context.spec.producer)

    def _asked(self) -> str:
        canary = self.progress.counts(self.challenger.version)
        if self.rollout.server.reads_log:
            return f"{canary.requests} requests in ingested windows of its log, in {self.progress.elapsed_s:.0f} s"
        refused = f", {canary.client_errors} refused" if canary.client_errors else ""
        return f"{canary.requests} requests, {canary.errors} failed{refused}, in {self.progress.elapsed_s:.0f} s"

    def _numbers_in_words(self, reasons: tuple[str, ...]) -> str:
        title = f"Version {self.challenger.version} of {self.rollout.model_name} has passed {self.progress.percent}%"
        lines = [self._asked(), *reasons]
        return f"{title} of the traffic, beside version {self.champion.version}.\n\n" + "\n".join(
            f"- {line}" for line in lines
        )

    @property
    def _pair(self) -> ServedPair:
        alone, limits = self.progress.is_alone, self.rollout.limits
        changes = tuple(event.at for event in self.last.history if event.at >= self.challenger.since)
        limits = replace(limits, wait_for_labels=limits.wait_for_labels and not alone)
        return ServedPair(self.challenger, self.champion, self.since, changes, alone, limits, self.rollout.labels)

    def _compare(self, significance: float, pair: ServedPair, *, everything: bool) -> tuple[CanaryFinding, ...]:
        """Compares errors, refusals and latency, and at the end of a step predictions and labels."""
        limits, progress = self.rollout.limits, self.progress
        canary = progress.counts(self.challenger.version)
        stable = progress.stable_counts(self.champion.version)
        since, rollout = self.since, self.rollout
        findings = [CanaryFinding("errors", NOT_JUDGED, "rows of a log have no failed or refused requests by version")]
        if not rollout.server.reads_log:
            findings = [compare(canary, stable, limits, significance) for compare in (compare_errors, compare_refusals)]
        findings += compare_latency(canary, stable, limits, significance)
        if everything:
            findings += pair.compare(rollout.context, rollout.server, rollout.model_name, significance)
        judged = {"version": self.challenger.version, "stable_version": self.champion.version, "since": since}
        return tuple(replace(finding, numbers={**judged, **finding.numbers}) for finding in findings)


def _said(answer: Mapping[str, object]) -> str:
    return f"{answer['by']}" + (f": {answer['note']}" if answer.get("note") else "")
