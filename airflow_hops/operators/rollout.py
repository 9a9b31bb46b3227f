"""Operator that rolls a canary out in steps, and promotes it or rolls it back."""

# The task holds no state between polls. A poll (``airflow_hops.ml.rollout``) reads the model's record, the
# server's counts and its configuration, and returns the artifact of a decision, or what to wait for. So these are the
# same: a wait in the worker, in the triggerer (``deferrable``), after a retry, and after a person's answer. A person's
# answer is a parameter of the next poll only. A decision is recorded in the model's record before the server's
# configuration is changed; the next poll applies a recorded decision that was not applied.

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypedDict

from airflow_hops.airflow_internals.tasks import HITLUser
from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.artifacts.properties import DeploymentProperties, RolloutProperties
from airflow_hops.core.performance import REQUEST_KEYS, PerformanceOptions
from airflow_hops.core.rollout.decision import PROMOTED, ROLLED_BACK
from airflow_hops.core.rollout.plan import Limits, RolloutPlan
from airflow_hops.core.sources.sources import row_source
from airflow_hops.core.steps.protocol import StepResult
from airflow_hops.core.times import in_seconds
from airflow_hops.operators.base import HopsOperator
from airflow_hops.operators.links import LINEAGE_LINK, MODELS_LINK
from airflow_hops.operators.people import Notifier, PersonAnswer, ask, notify
from airflow_hops.runner.arguments import BadArgument, Count, Length, NotNegative, Percent, Positive, Probability, Share
from airflow_hops.runner.runtime import RuntimeHook

if TYPE_CHECKING:
    from airflow.sdk import Context

Duration = timedelta | float

APPROVE, REJECT = "Promote to 100%", "Roll back"
_ON_APPROVAL_TIMEOUT = {"roll_back": REJECT, "promote": APPROVE}


class RolloutLimits(TypedDict, total=False):
    """Limits for a canary; those that are left out have their defaults.

    Attributes:
        max_error_increase: Tolerated increase of the share of failed requests, and of that of refused requests, 0 to 1
            (0.01).
        significance: Probability, for each of the comparisons, that it rolls back a canary within its limit; for
            errors, refusals, and predictions that are invalid or all the same, a canary that has them no more often
            than the stable version (0.01).
        max_latency_ratio: Tolerated ratio of the median and of the 99th percentile of latencies (2).
        latency_tolerance_ms: Tolerated increase of these latencies in milliseconds, whatever the ratio (10).
        max_prediction_distance: Tolerated Kolmogorov–Smirnov distance of the predictions, 0 to 1; None for any (None).
        max_loss_increase: Tolerated increase of the mean loss on live labels, as a share of the stable version's (0.1).
        min_labels: Labelled rows that each version needs for a comparison (50).
        wait_for_labels: Whether a step waits until they have come (True if ``labels`` is given).
    """

    max_error_increase: Share
    significance: Probability
    max_latency_ratio: Positive
    latency_tolerance_ms: NotNegative
    max_prediction_distance: Share | None
    max_loss_increase: NotNegative
    min_labels: Count
    wait_for_labels: bool


class RolloutLabels(TypedDict, total=False):
    """Labels of a table, which are joined with captured rows as :class:`PerformanceOperator` joins them.

    Attributes:
        source: A :class:`~airflow_hops.core.sources.sources.Source`, its URI or its fields; read by each look.
        keys: Columns that identify a prediction (``request_id`` and ``row``).
        label_time: Column with the time at which a label became known (None).
        label_column: Column of the label (that of the model's label).
        horizon: timedelta after a prediction in which its label becomes known, required for keys of other names (None).
        time_feature: Input with the row's time (the end of the scored window, or the time of the request).
        label_delay: timedelta below which predictions are not compared, since early labels may not be typical (0).
    """

    source: Any
    keys: Sequence[str]
    label_time: str
    label_column: str
    horizon: Length
    time_feature: str
    label_delay: Length


class RolloutApproval(TypedDict, total=False):
    """Approval by a person before 100%.

    Attributes:
        timeout: How long to wait for the answer; None waits forever (None).
        on_timeout: Action if nobody answers: ``roll_back`` or ``promote`` (``roll_back``).
        assigned_users: Users who may answer, each as ``{"id": ..., "name": ...}``; None for everyone who may answer for
            the DAG (None).
    """

    timeout: Length | None
    on_timeout: Literal["roll_back", "promote"]
    assigned_users: Sequence[HITLUser] | None


class RolloutPolling(TypedDict, total=False):
    """Waits of a rollout.

    Attributes:
        interval: How often to read the server's counts while waiting, as a timedelta or in seconds (1 s).
        longest: Longest wait before the next comparison, likewise (60 s).
    """

    interval: Length | Positive
    longest: Length | Positive


class RolloutOperator(HopsOperator):
    """Raises the canary's share of the traffic in steps, unless live requests show that it is worse.

    At each step it waits until the canary has received ``min_requests`` requests and ``bake_time`` has passed. It then
    compares the canary with the stable version, and continues with the next step, waits for more requests, or rolls
    back: the canary gets no traffic and is unloaded. After the last step the canary is promoted (alias ``champion``).
    If it looks worse at 100%, where nothing is compared at the same time, it returns to the step before; the second
    time, it is left there. If the deployment became the champion at once, the task returns without starting a process.

    Its state is in the model's record, so a retry, or another run with the same deployment, continues from the last
    comparison. Between comparisons it waits in the triggerer if it is ``deferrable``, and in the worker otherwise.

    Args:
        deployment: Output of a :class:`~airflow_hops.operators.deploy.DeployModelOperator`. (templated)
        steps: The canary's shares in percent, ascending to 100. The rollout begins with the share that the deployment
            gave the canary; steps up to it are skipped.
        bake_time: Shortest duration of a step, as a timedelta or in seconds: one for all steps, or one for each. If the
            list has none for 100%, a canary that passed the previous step is promoted at once.
        min_requests: Requests that the canary must receive in a step.
        timeout: Longest duration of a step, as a timedelta or in seconds. A difference that may be chance delays a step
            until then.
        on_timeout: Action at the timeout if the step could not be judged, as with too few requests: ``roll_back`` the
            canary, or ``leave`` it with its current share.
        approval: Whether a person must approve in Airflow before 100%; True, or a mapping with the fields of
            :class:`RolloutApproval`.
        limits: Limits of the comparisons, a mapping with fields of :class:`RolloutLimits`.
        labels: Labels of a table instead of clients' feedback, a mapping with the fields of :class:`RolloutLabels`.
            (templated)
        keep_versions: Number of versions that stay loaded after a promotion, including the promoted one.
        polling: Waits, a mapping with fields of :class:`RolloutPolling`.
        on_promoted: Notifiers for a promotion. Their templates can name ``rollout``, a
            :class:`~airflow_hops.core.artifacts.properties.RolloutProperties`. A retry notifies again.
        on_rolled_back: Notifiers for a rollback.

    Raises:
        BadInput: an argument has a wrong type or value.
    """

    entry: ClassVar[str] = "airflow_hops.ml.rollout:poll"
    output_kind = "rollout"
    input_arguments = ("deployment",)
    template_fields: Sequence[str] = (*HopsOperator.template_fields, "deployment", "labels")
    operator_extra_links = (MODELS_LINK, LINEAGE_LINK)
    cacheable: ClassVar[bool] = False
    controls_server: ClassVar[bool] = True

    def __init__(
        self,
        *,
        deployment: Any,
        steps: Sequence[Percent] = (5, 25, 50, 100),
        bake_time: Duration | Sequence[Duration] = timedelta(seconds=0),
        min_requests: Count = 500,
        timeout: Duration = timedelta(hours=1),
        on_timeout: Literal["roll_back", "leave"] = "roll_back",
        approval: bool | RolloutApproval = False,
        limits: RolloutLimits | None = None,
        labels: RolloutLabels | None = None,
        keep_versions: Count = 2,
        polling: RolloutPolling | None = None,
        on_promoted: Notifier | Sequence[Notifier] = (),
        on_rolled_back: Notifier | Sequence[Notifier] = (),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.deployment = deployment
        self.steps = steps
        self.bake_time = bake_time
        self.min_requests = min_requests
        self.timeout = timeout
        self.on_timeout = on_timeout
        self.approval = approval
        self.limits = limits
        self.labels = labels
        self.keep_versions = keep_versions
        self.polling = polling
        self.on_promoted = on_promoted
        self.on_rolled_back = on_rolled_back
        self.check_arguments(RolloutOperator)
        if isinstance(approval, Mapping) and "on_timeout" in approval and approval.get("timeout") is None:
            raise BadArgument(
                f"RolloutOperator {self.task_id!r}: approval['on_timeout'] is {approval['on_timeout']!r}, but there is "
                "no approval['timeout'], so the task waits forever; give it a timedelta, or leave out both"
            )
        self._plan()
        if isinstance(labels, Mapping):
            self.labels = {**labels, "source": self._label_options(labels).source}
        self._answer: dict[str, Any] | None = None

    def step_params(self, context: Context) -> dict[str, Any]:
        """Returns the plan, the limits, the person's answer and the labels' options."""
        limits: dict[str, Any] = {"wait_for_labels": self.labels is not None, **(self.limits or {})}
        plan, labels = asdict(self._plan()), self.labels and self._label_options(self.labels).to_dict()
        return {"plan": plan, "limits": asdict(Limits(**limits)), "answer": self._answer, "labels": labels}

    def _label_options(self, labels: RolloutLabels) -> PerformanceOptions:
        names = {"horizon": "horizon_s", "label_delay": "label_delay_s"}
        values: dict[str, Any] = {names.get(name, name): in_seconds(value) for name, value in labels.items()}
        options = PerformanceOptions(
            "", **{**values, "source": row_source("labels", values.get("source", {})).to_dict()}
        )
        by_time = None not in (options.horizon_s, options.label_time)
        if not by_time and (options.horizon_s is not None or not {*options.keys} <= {*REQUEST_KEYS}):
            raise BadArgument(
                f"RolloutOperator {self.task_id!r}: labels['keys'] is {list(options.keys)!r}, which may name several "
                "predictions; give both labels['label_time'] and labels['horizon'], the time after a prediction in "
                "which its label becomes known"
            )
        return options

    def _plan(self) -> RolloutPlan:
        return RolloutPlan.of(
            self.steps,
            _seconds(self.bake_time),
            min_requests=self.min_requests,
            timeout_s=_seconds(self.timeout),
            on_timeout=self.on_timeout,
            approval=self.approval is not False,
            keep_versions=self.keep_versions,
            longest_wait_s=_seconds((self.polling or {}).get("longest", 60.0)),
        )

    def execute(self, context: Context) -> Any:
        """Runs the step, and notifies people of a promotion or a rollback."""
        value = super().execute(context)
        rollout = RolloutProperties.of(Artifact.from_dict(value))
        notifiers = {PROMOTED: self.on_promoted, ROLLED_BACK: self.on_rolled_back}.get(rollout.decision, ())
        notify(notifiers, context, rollout=rollout)
        return value

    def run_step(self, hook: RuntimeHook, context: Context) -> StepResult:
        """Polls until the rollout is decided; returns at once for a deployment that became the champion."""
        from airflow_hops.triggers.rollout import RolloutTrigger  # its imports would slow down every DAG file

        if (result := self._already_champion(hook, context)) is not None:
            return result
        while True:
            result = super().run_step(hook, context)
            if result.is_artifact:
                return result
            self._answer = None
            if "question" in result.value:
                ask(
                    context,
                    f"{self.dag_id}: should the canary get all the traffic?",
                    result.value["question"],
                    (APPROVE, REJECT),
                    default=_ON_APPROVAL_TIMEOUT[self._asking.get("on_timeout", "roll_back")],
                    timeout=self._asking.get("timeout"),
                    note="Reason; stored with the model",
                    assigned_users=self._asking.get("assigned_users"),
                )
            trigger = RolloutTrigger(
                **{name: value for name, value in result.value["waiting"].items() if name != "text"},
                poll_s=_seconds((self.polling or {}).get("interval", 1.0)),
                conn_id=self.hops_conn_id,
            )
            if self.deferrable:
                self.defer(trigger=trigger, method_name="resume")
            asyncio.run(trigger.wait())

    def defers_step(self) -> bool:
        """Returns False: a comparison is short, and has the answer of a person."""
        return False

    def resume(self, context: Context, event: Any) -> Any:
        """Continues after the triggerer has waited."""
        return self.execute(context)

    def execute_complete(self, context: Context, event: Mapping[str, Any]) -> Any:
        """Continues with the person's answer: ``chosen_options``, ``params_input``, ``responded_by_user``."""
        answer = PersonAnswer.of(event, self._asking.get("timeout"))
        self._answer = {"approved": answer.choice == APPROVE, "by": answer.by, "note": answer.note, "at": answer.at}
        return self.execute(context)

    @property
    def _asking(self) -> RolloutApproval:
        return {} if isinstance(self.approval, bool) else self.approval

    def _already_champion(self, hook: RuntimeHook, context: Context) -> StepResult | None:
        """Returns the result for a deployment that became the champion at once; None for a canary."""
        spec = self.build_spec(hook, context)
        (deployment,) = spec.inputs["deployment"]
        properties = DeploymentProperties.of(deployment)
        if properties.mode != "champion" or spec.output is None:
            return None
        facts = RolloutProperties(
            model_name=properties.model_name,
            version=properties.version,
            decision="champion",
            reasons=("it is the champion already: there is nothing to compare it with",),
            champion=properties.version,
            traffic=properties.traffic,
        ).to_dict()
        with hook.store.create(spec.output.uri, spec.output.kind, spec.producer, inputs=spec.inputs) as writer:
            (writer.path / "rollout.json").write_text(json.dumps(facts, indent=1) + "\n")
            artifact = writer.commit(properties=facts)
        return StepResult(value=artifact.to_dict(), is_artifact=True, seconds={"start_up": 0.0, "work": 0.0})


def _seconds(duration: Duration | Sequence[Duration]) -> Any:
    if isinstance(duration, Sequence):
        return [_seconds(each) for each in duration]
    return duration.total_seconds() if isinstance(duration, timedelta) else float(duration)
