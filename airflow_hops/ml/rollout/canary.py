"""Polls a canary: evaluates the record and the server's counts, and takes the step that is due.

A poll writes a decision to the model's record before it applies it, so that the next poll, by any process, can apply it
again. The traffic always has shares from the record, whenever a process dies.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import numpy as np

from airflow_hops.core.artifacts.properties import ModelProperties
from airflow_hops.core.errors import BadInput, HopsError
from airflow_hops.core.models.model_record import ModelRecord, ServedVersion, by_whom
from airflow_hops.core.models.model_records import read_record, write_record
from airflow_hops.core.rollout.decision import (
    BAD,
    DOUBT,
    LEFT,
    PROMOTED,
    ROLLED_BACK,
    STEP,
    CanaryFinding,
    RolloutDecision,
)
from airflow_hops.core.rollout.plan import Limits, RolloutPlan
from airflow_hops.core.rollout.progress import Progress
from airflow_hops.core.times import now, seconds_since
from airflow_hops.ml.captured.requests import CapturedRequests
from airflow_hops.ml.captured.server import only_sink
from airflow_hops.ml.model_server import ModelServer
from airflow_hops.ml.rollout.answers import read_captured, read_labelled
from airflow_hops.ml.rollout.comparisons import (
    LabelledAnswers,
    compare_errors,
    compare_labels,
    compare_latency,
    compare_predictions,
    compare_refusals,
)
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
            step = step.after(self.server.counts(self.model_name))
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
            return replace(progress.next_step(challenger.traffic_percent, champion.version), approval=None)
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

    def after(self, counted: Mapping[int, Mapping[str, object]]) -> _Step:
        """Adds the server's counts since the last poll."""
        return replace(self, progress=self.progress.after(counted))

    def go_on(self, *, now_due: bool = False) -> Outcome:
        """Runs a test if one is due, and starts the next step if this one is passed.

        ``now_due`` requests a test in any case, after a time without polls.
        """
        plan, progress = self.rollout.plan, self.progress
        canary = progress.counts(self.challenger.version)
        over = canary.requests >= progress.requests_needed(plan) and progress.elapsed_s >= plan.bake_s(progress.percent)
        at_end = over and not progress.judged
        findings: tuple[CanaryFinding, ...] = ()
        step = self
        if at_end or now_due or canary.requests >= progress.requests_to_test:
            progress, early = progress.tested(canary.requests, at_end=at_end)
            significance = progress.significance(self.rollout.limits.significance, early)
            findings = self._compare(significance, everything=over)
            doubts = tuple(finding.reason for finding in findings if finding.verdict == DOUBT)
            if over and not doubts:
                progress = replace(progress, passed=tuple(finding.reason for finding in findings))
            step = replace(self, progress=replace(progress, doubts=doubts if over else ()))
            if bad := tuple(finding.reason for finding in findings if finding.verdict == BAD):
                return step.end(ROLLED_BACK, bad, findings)
        if step.progress.passed is not None:
            return step._pass(step.progress.passed, findings)
        if step.progress.elapsed_s >= plan.timeout_s:
            return step._time_out()
        return step.wait()

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
        begun = replace(
            self,
            last=replace(self.last, champion=replace(self.champion, traffic_percent=100 - following)).after(
                "step",
                self.challenger.version,
                why,
                traffic={self.champion.version: 100 - following, self.challenger.version: following},
                by=self._by,
                decision=self._decision(STEP, reasons, findings),
            ),
            challenger=replace(self.challenger, traffic_percent=following),
            progress=progress.next_step(following, self.champion.version),
        )
        self.rollout._write(begun.record)
        self.rollout.context.progress(following / 100, why)
        try:
            enforce(self.rollout.server, self.rollout.model_name, begun.record)
        except HopsError as away:  # the decision is recorded: the next poll applies it
            return begun._waiting(str(away))
        return begun._waiting(f"canary {self.challenger.version} gets {following}%")

    def _time_out(self) -> RolloutDecision:
        plan, progress = self.rollout.plan, self.progress
        asked = progress.counts(self.challenger.version).requests
        result = (
            "; ".join(progress.doubts)
            if progress.doubts
            else f"the canary was asked {asked} times, {progress.requests_needed(plan)} needed"
        )
        decision = ROLLED_BACK if plan.on_timeout == "roll_back" else LEFT
        return self.end(decision, (f"not judged within {plan.timeout_s:g} s: {result}",))

    def wait(self, away: str = "") -> Outcome:
        """Records the progress and returns the time of the next poll; ends the rollout if the server is away too long.

        ``away`` is the error if the counts could not be read.
        """
        if away and self.progress.passed is None and self.progress.elapsed_s >= self.rollout.plan.timeout_s:
            decision = ROLLED_BACK if self.rollout.plan.on_timeout == "roll_back" else LEFT
            return self.end(decision, (f"not judged within {self.rollout.plan.timeout_s:g} s: {away}",))
        self.rollout._write(self.record)
        return self._waiting(away)

    def _waiting(self, text: str = "") -> Waiting:
        plan, progress = self.rollout.plan, self.progress
        left_s = min(plan.timeout_s - progress.elapsed_s, plan.longest_wait_s)
        bake_s = plan.bake_s(progress.percent)
        needed, wanted = progress.requests_needed(plan), progress.requests_to_test
        if not progress.judged and progress.elapsed_s < bake_s:
            left_s = min(left_s, bake_s - progress.elapsed_s)
        elif not progress.judged:
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
        refused = f", {canary.client_errors} refused" if canary.client_errors else ""
        return f"{canary.requests} requests, {canary.errors} failed{refused}, in {self.progress.elapsed_s:.0f} s"

    def _numbers_in_words(self, reasons: tuple[str, ...]) -> str:
        title = f"Version {self.challenger.version} of {self.rollout.model_name} has passed {self.progress.percent}%"
        lines = [self._asked(), *reasons]
        return f"{title} of the traffic, beside version {self.champion.version}.\n\n" + "\n".join(
            f"- {line}" for line in lines
        )

    def _compare(self, significance: float, *, everything: bool) -> tuple[CanaryFinding, ...]:
        """Compares errors, refusals and latency, and at the end of a step predictions and labels."""
        limits, progress = self.rollout.limits, self.progress
        canary = progress.counts(self.challenger.version)
        stable = progress.stable_counts(self.champion.version)
        findings = [compare(canary, stable, limits, significance) for compare in (compare_errors, compare_refusals)]
        findings += compare_latency(canary, stable, limits, significance)
        return (*findings, *(self._compare_captured(significance) if everything else ()))

    def _compare_captured(self, significance: float) -> list[CanaryFinding]:
        """Compares the captured answers of both versions since the canary's deployment."""
        rollout, limits = self.rollout, self.rollout.limits
        context = rollout.context
        requests = CapturedRequests.of(context.spec.services, context.store, rollout.model_name)
        unjudged = limits.unjudged_predictions
        if sink := only_sink(context.spec.services):
            text = f"the server sends requests to {sink} alone: predictions and labels need --capture_base_path"
            return [CanaryFinding("predictions", unjudged, text)]
        if requests is None:
            return [CanaryFinding("predictions", unjudged, "the connection names no capture path")]
        rollout.server.flush_capture()
        since = datetime.fromisoformat(self.challenger.since)
        ours, theirs = (read_captured(requests, served.version, since) for served in (self.challenger, self.champion))
        if not ours.outputs:
            return [CanaryFinding("predictions", unjudged, "no numeric output of the canary was captured")]
        share = significance / len(ours.outputs)
        mine, stable = (ModelProperties.of(version.model) for version in (self.challenger, self.champion))
        both = [n for n in mine.classes if n in stable.classes] if mine.classes and stable.classes else None
        report, others = (ours.of_classes(mine.classes, both), theirs.of_classes(stable.classes, both))
        findings = [
            compare_predictions(values, others.outputs.get(name, np.empty(0)), name, limits, share, both)
            for name, values in sorted(report.outputs.items())
        ]
        feedback, further = requests.feedback(), {*(mine.more_labels or ()), *(stable.more_labels or ())}
        labelled, reference = (
            read_labelled(captured, feedback, served.label, served.classes, both, further)
            for captured, served in ((ours, mine), (theirs, stable))
        )
        nothing = LabelledAnswers(np.empty(0), np.empty(0))
        for name in sorted(labelled.keys() | reference.keys()):
            rows, their_rows = labelled.get(name, nothing), reference.get(name, nothing)
            findings.append(compare_labels(rows, their_rows, name, limits, share))
        return findings


def _said(answer: Mapping[str, object]) -> str:
    return f"{answer['by']}" + (f": {answer['note']}" if answer.get("note") else "")
