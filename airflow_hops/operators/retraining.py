"""Operator that decides after each comparison whether to request a retraining with an asset event."""

# The order of a decision (files: :mod:`airflow_hops.core.retraining.decisions`):
# 1. Read the task's decisions and the newest request of any monitor of the model.
# 2. Decide, and ask a person if the policy says so; the task leaves its worker until the answer, and starts again at 1.
# 3. Create the request's file, then the decision's. If either number was taken, start again at 1.
# 4. Notify people, and return; Airflow then emits the asset event.
# A kill before 3 leaves nothing. A retry after 3 finds its own decision for the same comparison, and repeats the event
# instead of making a second request.

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset, XComArg

from airflow_hops.airflow_internals.tasks import AirflowFailException, gauge
from airflow_hops.core.artifacts.artifact import Artifact, Producer
from airflow_hops.core.artifacts.properties import ModelProperties
from airflow_hops.core.distances import DRIFT
from airflow_hops.core.errors import BadInput, HopsError
from airflow_hops.core.json_fields import as_json
from airflow_hops.core.models.model_record import by_whom
from airflow_hops.core.models.model_records import read_record
from airflow_hops.core.performance import PerformanceProperties
from airflow_hops.core.retraining.conditions import Memory
from airflow_hops.core.retraining.decision import RetrainingDecision, RetrainingRequest, decide
from airflow_hops.core.retraining.decisions import (
    DecisionLog,
    RecordedDecision,
    claimants,
    cost_of,
    found_no_new_rows,
    newest_request,
    note_request,
)
from airflow_hops.core.retraining.policy import RetrainingPolicy
from airflow_hops.core.retraining.situation import Situation
from airflow_hops.core.skew import SkewProperties
from airflow_hops.core.store import ArtifactStore
from airflow_hops.core.times import as_utc, now, seconds_since
from airflow_hops.operators.base import HopsTask, airflow_error, partition_key, producer_of, skipped
from airflow_hops.operators.links import LINEAGE_LINK, SKEW_LINK
from airflow_hops.operators.people import Notifier, PersonAnswer, ask, notify
from airflow_hops.runner.arguments import Age, Length
from airflow_hops.runner.runtime import RuntimeHook

if TYPE_CHECKING:
    from airflow.sdk import Context

RETRAIN, NOT_NOW = "Retrain", "Not now"

_CLAIMED_WITHIN = timedelta(hours=1)
"""How long an unclaimed request counts as pending."""
_GOING_TO_RUN = {
    "scheduled", "queued", "running", "restarting", "up_for_retry", "up_for_reschedule", "deferred", "awaiting_input",
    "None",
}  # fmt: skip
_STOPS = {"monitor", "rejected", "budget"}
"""Refusals that ``on_stop`` reports."""
_AT_ONCE = 20
_NOT_ASKED = {"monitor", "verdict", "in_flight"}
"""Reasons of decisions that refuse nothing: there was no cause to retrain, or a retraining is under way."""


class RequestRetrainingOperator(HopsTask):
    """Emits an asset event if the policy says so; otherwise the task is skipped with the reason.

    Each comparison leads to one decision, a file in the store that is written once, with the time of the compared data.
    A retry uses the recorded decision of its run and emits the event again. If a task was killed before it emitted its
    event and not retried, the next decision repeats the request with the same ``cause``. A training DAG that begins
    with an ``IngestOperator`` handles each cause once.

    The event's ``extra`` holds ``window_start`` and ``window_end`` (the data to train on), ``model_name`` (of captured
    requests), ``drifted``, ``skew`` (URI of the report), ``reason``, ``cause`` and ``decision`` (its URI). The XCom
    holds the same, the results of the conditions, and the notifications sent (``notified``: "drift", "request",
    "stop"). A skipped task pushes this as the XCom ``refused``, with ``why``: "monitor", "verdict" (no reason), the
    kind of the condition that forbids it ("pipeline_fault", "rollout", "rejected"), "in_flight", "no_new_rows" (the
    files of the sources have not changed since the champion was trained), "cooldown", "budget" or "person". Without a
    comparison the task fails.

    Args:
        skew: The output of ``SkewOperator``. (templated)
        performance: The output of ``PerformanceOperator``, for a policy with the condition ``Performance``. (templated)
        asset: Asset of the event; schedule the training DAG on it.
        policy: When to request a retraining; None for drift, with ``cooldown``.
        cooldown: Instead of ``policy``: time before the next request for the same training data; a day by default.
        on_drift: Notifiers for when drift begins. Their templates can name ``decision``, a
            :class:`~airflow_hops.retraining.RetrainingDecision`, and ``decision.reason``. A retry notifies again.
        on_request: Notifiers for each request, and for the question if a person is asked.
        on_stop: Notifiers for when requests stop: the budget is spent, several candidates in a row were rejected, or
            the monitor itself has a problem.
        answer_within: Time for a person's answer (``ask`` of the policy), in real time; no answer is a refusal.
        partition_by_window: As :class:`~airflow_hops.operators.base.HopsOperator`, for the window to train on.
        hops_conn_id: Connection of type ``hops``. (templated)
        **kwargs: As ``BaseOperator``.

    Raises:
        BadInput: ``policy`` is not a policy, or is combined with ``cooldown``.
    """

    input_arguments = ("skew", "performance")
    template_fields: Sequence[str] = ("skew", "performance", "hops_conn_id")
    operator_extra_links = (SKEW_LINK, LINEAGE_LINK)
    decision: RetrainingDecision | None = None
    """The decision of the last execution."""

    def __init__(
        self,
        *,
        skew: Any,
        asset: Asset,
        performance: Any = None,
        policy: RetrainingPolicy | None = None,
        cooldown: Age | None = None,
        on_drift: Notifier | Sequence[Notifier] = (),
        on_request: Notifier | Sequence[Notifier] = (),
        on_stop: Notifier | Sequence[Notifier] = (),
        answer_within: Length = timedelta(days=7),
        partition_by_window: bool = False,
        hops_conn_id: str = RuntimeHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        super().__init__(outlets=[*kwargs.pop("outlets", []), asset], **kwargs)
        if policy is None:
            policy = RetrainingPolicy(cooldown=cooldown or timedelta(days=1), champion_ends_cooldown=True)
        elif cooldown is not None:
            raise BadInput(f"{self.task_id}: cooldown cannot be combined with policy, which has its own")
        self.skew = skew
        self.asset = asset
        self.performance = performance
        self.policy = policy
        self.cooldown = cooldown
        self.on_drift = on_drift
        self.on_request = on_request
        self.on_stop = on_stop
        self.answer_within = answer_within
        self.partition_by_window = partition_by_window
        self.hops_conn_id = hops_conn_id
        self.check_arguments(RequestRetrainingOperator)
        self._compares = [task.task_id for task, _ in XComArg.iter_xcom_references(skew)]
        self._measures = performance is not None  # the output of a failed task is None
        self._answer: PersonAnswer | None = None

    def execute(self, context: Context) -> dict[str, Any]:
        """Requests a retraining, or raises with the reason for not doing so."""
        report = self._comparison(context)
        try:
            recorded, drift_began, stopped = self._decided(context, report)
        except HopsError as error:
            raise airflow_error(error) from error
        self.decision = decision = recorded.decision
        informed = list[str]()
        if drift_began and self._answer is None and notify(self.on_drift, context, decision=decision):
            informed.append("drift")
        facts = {"skew": report.uri, "decision": recorded.uri, "cause": decision.cause}
        grounds = {"at": decision.at, "findings": as_json(decision.findings), "limits": list(decision.limits)}
        is_refused = not decision.requested and decision.why not in _NOT_ASKED
        gauge("hops.retraining_refused", int(is_refused), tags={"dag_id": self.dag_id, "task_id": self.task_id})
        if not decision.requested:
            if stopped and notify(self.on_stop, context, decision=decision):
                informed.append("stop")
            raise skipped(context["ti"], decision.reason, why=decision.why, notified=informed, **facts, **grounds)
        skew = SkewProperties.of(report)
        if notify(self.on_request, context, decision=decision):
            informed.append("request")
        start, end = decision.window
        window = {"window_end": end} if start is None else {"window_start": start, "window_end": end}
        model = {"model_name": skew.reference.model} if skew.reference.model else {}
        extra: dict[str, Any] = {**window, **model, "drifted": list(skew.drifted), "reason": decision.reason, **facts}
        event = context["outlet_events"][self.asset]
        event.extra = extra
        if self.partition_by_window:
            event.add_partitions(partition_key(decision.window))
        self.log.info("Retraining requested: %s", decision.reason)
        return {**extra, **grounds, "notified": informed}

    def execute_complete(self, context: Context, event: Mapping[str, Any]) -> dict[str, Any]:
        """Continues with the person's answer: ``chosen_options``, ``params_input``, ``responded_by_user``."""
        self._answer = PersonAnswer.of(event, self.answer_within)
        if event.get("timedout"):
            self._answer = replace(self._answer, by="nobody", note=self._answer.by)
        return self.execute(context)

    def _comparison(self, context: Context) -> Artifact:
        if self.skew is None and self._compares:
            ti = context["ti"]
            states = ti.get_task_states(ti.dag_id, task_ids=self._compares, run_ids=[ti.run_id]).get(ti.run_id, {})
            ended = ", ".join(f"task {name!r} is {state}" for name, state in states.items())
            raise AirflowFailException(f"nothing is decided without a comparison: {ended}; see why in its log")
        try:
            return Artifact.from_dict(self.skew)
        except BadInput as error:
            raise AirflowFailException(f"input 'skew': {error}") from error

    def _decided(self, context: Context, report: Artifact) -> tuple[RecordedDecision, bool, bool]:
        """Returns the decision, whether drift begins with it, and whether requests stop."""
        producer = producer_of(context)
        store = RuntimeHook(self.hops_conn_id).store
        log = DecisionLog(store, producer)
        model = SkewProperties.of(report).reference.model
        for _ in range(_AT_ONCE):
            names = log.names()
            mine = log.newest(names)
            other = mine.pop() if mine and mine[-1].by != by_whom(producer) else None
            decided = other.decision if other else None
            # A recorded request is repeated; a refusal is decided again when its task is cleared.
            request = mine[0].decision if mine and mine[0].decision.requested else None
            if request and request.basis.get("fingerprint") == report.fingerprint:
                recorded = mine[0]
            else:
                previous = decided
                if mine:  # this run's counts are replaced; its requests stay
                    memory, requests = decided.memory if decided else Memory(), mine[0].decision.requests
                    previous = replace(decided or mine[0].decision, memory=memory, requests=requests)
                number, others = newest_request(store, self.asset.name, model)
                situation = self._situation(context, store, report, previous, others)
                decision = decide(self.policy, situation, previous)
                if decision.requested and (reason := _no_new_rows(store, model)):
                    decision = decide(self.policy, replace(situation, no_new_rows=reason), previous)
                began = _begins(report, decided)
                decision = self._answered(context, _made_by(decision, producer), began)
                try:
                    if decision.requested:
                        note_request(store, self.asset.name, model, decision.requests[-1], number + 1)
                    recorded = log.append(names, decision)
                except FileExistsError:
                    continue  # another run, or another monitor of the model, has decided in the meantime
            decision = recorded.decision
            stopped = decision.why in _STOPS and not (decided and decided.why == decision.why)
            return recorded, _begins(report, decided), stopped
        raise HopsError(f"{log.folder}: {_AT_ONCE} other decisions came in between; let one run decide at a time")

    def _situation(
        self,
        context: Context,
        store: ArtifactStore,
        report: Artifact,
        previous: RetrainingDecision | None,
        others: RetrainingRequest | None,
    ) -> Situation:
        skew, last = SkewProperties.of(report), previous.requests[-1] if previous and previous.requests else None
        known: dict[str, Any] = {"measured": None}
        if self.performance is not None:
            known["measured"] = measured = Artifact.from_dict(self.performance)
            model_name = PerformanceProperties.of(measured).model_name
            if measured.kind != "performance" or model_name != skew.reference.model:
                raise BadInput(
                    f"input 'performance' ({measured.uri}) is {measured.kind!r} of model {model_name!r}; expected "
                    f"performance of model {skew.reference.model!r}, whose requests were compared"
                )
        if self._measures and known["measured"] is None:
            known["unmeasured"] = "the performance was not measured: see why its task failed"
        model, version = skew.reference.model, skew.reference.version
        if model:
            record = read_record(store, model)
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
        coming = _under_way(context, store, last) if last is not None and not last.refused else ""
        if coming is None and last is not None:
            known["unsent"] = frozenset([last.cause])
        if last is not None:
            known["fruitless"] = {last.cause: found_no_new_rows(store, last.cause)}
        if not coming and others is not None and others.cause != (last.cause if last else None):
            coming = _under_way(context, store, others)
        if coming:
            known.setdefault("in_flight", coming)
        # The cost of requests before the last one is final, and known unless no run trained for them.
        asked = [each for each in previous.requests if each is last or not each.core_s] if previous else []
        if self.policy.budget and self.policy.budget.counts_hours:
            known["costs"] = {each.cause: cost_of(store, each.cause) for each in asked if not each.refused}
        run = context["dag_run"]
        return Situation.of(report, run.logical_date or run.run_after, **known)

    def _answered(self, context: Context, decision: RetrainingDecision, drift_began: bool) -> RetrainingDecision:
        """Returns the decision after a person was asked, if the policy requires that.

        Notifies people of the question, and of drift that begins, before asking.

        Raises:
            TaskAwaitingInput: the person has not been asked yet.
        """
        if not decision.requested or not self.policy.ask:
            return decision
        if self._answer is None:
            asked = replace(decision, reason=f"{decision.reason}; a person is asked")
            if drift_began:
                notify(self.on_drift, context, decision=asked)
            notify(self.on_request, context, decision=asked)
            start, end = decision.window
            ask(
                context,
                f"{self.dag_id}: should the model be trained again?",
                f"{decision.reason}. It would learn from {start or 'the beginning'} to {end or 'the end'}.",
                (RETRAIN, NOT_NOW),
                default=NOT_NOW,
                timeout=self.answer_within,
                note="Reason; stored with the decision",
            )
        by, note = self._answer.by, f": {self._answer.note}" if self._answer.note else ""
        if self._answer.choice == NOT_NOW:
            return decision.refused_by_a_person(f"{by} refused{note}")
        return replace(decision, reason=f"{decision.reason}; {by} agreed{note}")


def _begins(report: Artifact, earlier: RetrainingDecision | None) -> bool:
    """Returns whether drift begins with a comparison."""
    return SkewProperties.of(report).verdict == DRIFT and not (earlier and earlier.memory.drifting)


def _no_new_rows(store: ArtifactStore, model: str | None) -> str:
    """Returns the reason if there are certainly no new rows to train on; otherwise an empty text."""
    from airflow_hops.runner.new_rows import has_unchanged_files

    champion = read_record(store, model).champion if model else None
    if champion is None or not has_unchanged_files(store, champion.model):
        return ""
    return (
        f"no file of the sources has changed since version {champion.version} was trained on all their rows: there is "
        "nothing new to learn"
    )


def _made_by(decision: RetrainingDecision, producer: Producer) -> RetrainingDecision:
    """Returns the decision with the producer of its request filled in."""
    by = {**by_whom(producer), "map_index": producer.map_index}
    requests = tuple(each if each.by else replace(each, made=now(), by=by) for each in decision.requests)
    return replace(decision, requests=requests)


def _end(window: Sequence[str | None] | None) -> datetime | None:
    return as_utc(window[1]) if window and window[1] else None


def _under_way(context: Context, store: ArtifactStore, request: RetrainingRequest) -> str | None:
    """Returns why an earlier request is pending; empty if it is over, None if its event was never emitted."""
    ti, by = context["ti"], request.by
    trainers = claimants(store, request.cause)
    for each in trainers:
        if ti.get_dr_count(each["dag_id"], run_ids=[each["run_id"]], states=["queued", "running"]):
            return f"run {each['run_id']} of {each['dag_id']} is training for the request of {request.at}"
    if trainers:
        return ""
    producer = producer_of(context)
    if by == {**by_whom(producer), "map_index": producer.map_index}:
        return None
    task = by["task_id"] if by["map_index"] < 0 else f"{by['task_id']}_{by['map_index']}"
    states = ti.get_task_states(by["dag_id"], task_ids=[by["task_id"]], run_ids=[by["run_id"]]).get(by["run_id"], {})
    state = str(states[task]) if task in states else "success"
    if state in _GOING_TO_RUN:
        return f"run {by['run_id']} is about to request it"
    if state != "success":
        return None
    recent = seconds_since(request.made) < _CLAIMED_WITHIN.total_seconds()
    return f"requested by run {by['run_id']} at {request.made}; no run has claimed it yet" * recent
