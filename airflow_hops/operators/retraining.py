"""Operator that decides after each comparison whether to request a retraining with an asset event."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset, XComArg

from airflow_hops.airflow_internals.tasks import AirflowFailException, gauge
from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.errors import BadInput, HopsError
from airflow_hops.core.json_fields import as_json
from airflow_hops.core.retraining.decision import RetrainingDecision
from airflow_hops.core.retraining.policy import RetrainingPolicy
from airflow_hops.core.skew import SkewProperties
from airflow_hops.operators.base import HopsTask, airflow_error, partition_key, producer_of, skipped
from airflow_hops.operators.links import LINEAGE_LINK, SKEW_LINK
from airflow_hops.operators.people import Notifier, PersonAnswer, ask, notify
from airflow_hops.runner.arguments import Age, Length
from airflow_hops.runner.runtime import RuntimeHook

if TYPE_CHECKING:
    from airflow.sdk import Context

RETRAIN, NOT_NOW = "Retrain", "Not now"

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
        from airflow_hops.runner.retraining import Monitor  # its imports would slow down every DAG file

        report = self._comparison(context)
        try:
            monitor = Monitor(
                context,
                producer_of(context),
                RuntimeHook(self.hops_conn_id).store,
                policy=self.policy,
                asset=self.asset.name,
                report=report,
                measured=None if self.performance is None else Artifact.from_dict(self.performance),
                measures=self._measures,
            )
            decided = monitor.decide(partial(self._answered, context))
        except HopsError as error:
            raise airflow_error(error) from error
        self.decision = decision = decided.recorded.decision
        informed = list[str]()
        if decided.drift_began and self._answer is None and notify(self.on_drift, context, decision=decision):
            informed.append("drift")
        facts = {"skew": report.uri, "decision": decided.recorded.uri, "cause": decision.cause}
        grounds = {"at": decision.at, "findings": as_json(decision.findings), "limits": list(decision.limits)}
        is_refused = not decision.requested and decision.why not in _NOT_ASKED
        gauge("hops.retraining_refused", int(is_refused), tags={"dag_id": self.dag_id, "task_id": self.task_id})
        if not decision.requested:
            if decided.stopped and notify(self.on_stop, context, decision=decision):
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
