"""Decides after a comparison whether a model is trained again, from what the store and Airflow know of it."""

# The order of a decision (files: :mod:`airflow_hops.core.retraining.decisions`):
# 1. Read the task's decisions and the newest request of any monitor of the model.
# 2. Decide, and ask a person if the policy says so; the task leaves its worker until the answer, and starts again at 1.
# 3. Create the request's file, then the decision's. If either number was taken, start again at 1.
# 4. The operator notifies people and returns; Airflow then emits the asset event.
# A kill before 3 leaves nothing. A retry after 3 finds its own decision for the same comparison, and repeats the event
# instead of making a second request.

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow_hops.core.artifacts.artifact import Artifact, Producer
from airflow_hops.core.artifacts.properties import ModelProperties
from airflow_hops.core.errors import BadInput, HopsError
from airflow_hops.core.models.model_record import by_whom, read_record
from airflow_hops.core.performance import PerformanceProperties
from airflow_hops.core.retraining import decisions
from airflow_hops.core.retraining.conditions import Memory
from airflow_hops.core.retraining.decision import RetrainingDecision, RetrainingRequest, decide
from airflow_hops.core.retraining.policy import RetrainingPolicy
from airflow_hops.core.retraining.situation import Situation
from airflow_hops.core.skew import DRIFT, SkewProperties
from airflow_hops.core.store import ArtifactStore
from airflow_hops.core.times import as_utc, now, seconds_since
from airflow_hops.runner.new_rows import has_unchanged_files

if TYPE_CHECKING:
    from airflow.sdk import Context

_CLAIMED_WITHIN = timedelta(hours=1)
"""How long an unclaimed request counts as pending."""
_GOING_TO_RUN = {
    "scheduled", "queued", "running", "restarting", "up_for_retry", "up_for_reschedule", "deferred", "awaiting_input",
    "None",
}  # fmt: skip
_STOPS = {"monitor", "rejected", "budget"}
"""Refusals that mean that requests stop."""
_AT_ONCE = 20


@dataclass(frozen=True)
class Decided:
    """A recorded decision, whether drift begins with it, and whether requests stop."""

    recorded: decisions.RecordedDecision
    drift_began: bool
    stopped: bool


@dataclass(frozen=True)
class Monitor:
    """A task that decides on a comparison.

    Attributes:
        context: The task's context.
        producer: The task instance.
        asset: Name of the asset of its requests.
        report: The comparison, a ``skew`` artifact.
        measured: The ``performance`` artifact, if there is one.
        measures: Whether there should be one.
    """

    context: Context
    producer: Producer
    store: ArtifactStore
    policy: RetrainingPolicy
    asset: str
    report: Artifact
    measured: Artifact | None
    measures: bool

    def decide(self, ask: Callable[[RetrainingDecision, bool], RetrainingDecision]) -> Decided:
        """Decides and records it; an earlier try's decision on the same comparison stays.

        Args:
            ask: Asks a person, if the policy requires that: called with the decision and whether drift begins, it
                returns the decision with the answer.

        Raises:
            BadInput: an artifact or a record cannot be read.
            HopsError: others decide faster all the time.
        """
        log, skew = decisions.DecisionLog(self.store, self.producer), SkewProperties.of(self.report)
        model = skew.reference.model
        for _ in range(_AT_ONCE):
            names = log.names()
            mine = log.newest(names)
            other = mine.pop() if mine and mine[-1].by != by_whom(self.producer) else None
            decided = other.decision if other else None
            began = skew.verdict == DRIFT and not (decided and decided.memory.drifting)
            # A recorded request is repeated; a refusal is decided again when its task is cleared.
            request = mine[0].decision if mine and mine[0].decision.requested else None
            if request and request.basis.get("fingerprint") == self.report.fingerprint:
                recorded = mine[0]
            else:
                previous = decided
                if mine:  # this run's counts are replaced; its requests stay
                    memory, requests = decided.memory if decided else Memory(), mine[0].decision.requests
                    previous = replace(decided or mine[0].decision, memory=memory, requests=requests)
                number, others = decisions.newest_request(self.store, self.asset, model)
                situation = self.situation(previous, others)
                decision = decide(self.policy, situation, previous)
                if decision.requested and (reason := _no_new_rows(self.store, model)):
                    decision = decide(self.policy, replace(situation, no_new_rows=reason), previous)
                decision = ask(self._made(decision), began)
                try:
                    if decision.requested:
                        decisions.note_request(self.store, self.asset, model, decision.requests[-1], number + 1)
                    recorded = log.append(names, decision)
                except FileExistsError:
                    continue  # another run, or another monitor of the model, has decided in the meantime
            why = recorded.decision.why
            return Decided(recorded, began, why in _STOPS and not (decided and decided.why == why))
        raise HopsError(f"{log.folder}: {_AT_ONCE} other decisions came in between; let one run decide at a time")

    def situation(self, previous: RetrainingDecision | None, others: RetrainingRequest | None) -> Situation:
        """Returns the facts, after the task's previous decision and the newest request of any monitor of the model."""
        skew, last = SkewProperties.of(self.report), previous.requests[-1] if previous and previous.requests else None
        model, version, measured = skew.reference.model, skew.reference.version, self.measured
        known: dict[str, Any] = {"measured": measured}
        if measured is not None:
            model_name = PerformanceProperties.of(measured).model_name
            if measured.kind != "performance" or model_name != model:
                raise BadInput(
                    f"input 'performance' ({measured.uri}) is {measured.kind!r} of model {model_name!r}; expected "
                    f"performance of model {model!r}, whose requests were compared"
                )
        elif self.measures:
            known["unmeasured"] = "the performance was not measured: see why its task failed"
        if model:
            record = read_record(self.store, model)
            if record.challenger is not None:
                known["rollout"] = (
                    f"version {record.challenger.version} of model {model!r} is being rolled out: its outcome must be "
                    "known first"
                )
            compared = record.served(version or 0)
            if compared is not None:
                known["trained_until"] = _end(ModelProperties.of(compared.model).window)
            elif record.champion is not None:
                known["in_flight"] = f"version {record.champion.version} has become the champion since the comparison"
        else:
            known["trained_until"] = _end((skew.windows or {}).get("reference"))
        coming = self._under_way(last) if last is not None and not last.refused else ""
        if coming is None and last is not None:
            known["unsent"] = frozenset([last.cause])
        if last is not None:
            known["fruitless"] = {last.cause: decisions.found_no_new_rows(self.store, last.cause)}
        if not coming and others is not None and others.cause != (last.cause if last else None):
            coming = self._under_way(others)
        if coming:
            known.setdefault("in_flight", coming)
        # The cost of requests before the last one is final, and known unless no run trained for them.
        asked = [each for each in previous.requests if each is last or not each.core_s] if previous else []
        if self.policy.budget and self.policy.budget.counts_hours:
            known["costs"] = {
                each.cause: decisions.cost_of(self.store, each.cause) for each in asked if not each.refused
            }
        run = self.context["dag_run"]
        return Situation.of(self.report, run.logical_date or run.run_after, **known)

    def _made(self, decision: RetrainingDecision) -> RetrainingDecision:
        """Returns the decision with the producer of its request filled in."""
        requests = tuple(each if each.by else replace(each, made=now(), by=self._by) for each in decision.requests)
        return replace(decision, requests=requests)

    @property
    def _by(self) -> dict[str, object]:
        return {**by_whom(self.producer), "map_index": self.producer.map_index}

    def _under_way(self, request: RetrainingRequest) -> str | None:
        """Returns why an earlier request is pending; empty if it is over, None if its event was never emitted."""
        ti, by = self.context["ti"], request.by
        trainers = decisions.claimants(self.store, request.cause)
        for each in trainers:
            if ti.get_dr_count(each["dag_id"], run_ids=[each["run_id"]], states=["queued", "running"]):
                return f"run {each['run_id']} of {each['dag_id']} is training for the request of {request.at}"
        if trainers:
            return ""
        if by == self._by:
            return None
        task = by["task_id"] if by["map_index"] < 0 else f"{by['task_id']}_{by['map_index']}"
        states = ti.get_task_states(by["dag_id"], task_ids=[by["task_id"]], run_ids=[by["run_id"]])
        state = str(states.get(by["run_id"], {}).get(task, "success"))
        if state in _GOING_TO_RUN:
            return f"run {by['run_id']} is about to request it"
        if state != "success":
            return None
        recent = seconds_since(request.made) < _CLAIMED_WITHIN.total_seconds()
        return f"requested by run {by['run_id']} at {request.made}; no run has claimed it yet" * recent


def _no_new_rows(store: ArtifactStore, model: str | None) -> str:
    """Returns the reason if there are certainly no new rows to train on; otherwise an empty text."""
    champion = read_record(store, model).champion if model else None
    if champion is None or not has_unchanged_files(store, champion.model):
        return ""
    return (
        f"no file of the sources has changed since version {champion.version} was trained on all their rows: there is "
        "nothing new to learn"
    )


def _end(window: Sequence[str | None] | None) -> datetime | None:
    return as_utc(window[1]) if window and window[1] else None
