"""Rolls a canary out step by step, and promotes it or rolls it back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from airflow.configuration import conf

from airflow_hops.core.contract.artifacts import Artifact
from airflow_hops.core.contract.properties import DeploymentProperties, RolloutProperties
from airflow_hops.core.contract.protocol import StepResult
from airflow_hops.core.contract.rollout.decision import PROMOTED, ROLLED_BACK
from airflow_hops.core.contract.rollout.plan import Limits, Plan
from airflow_hops.hooks.model_server import model_server_services
from airflow_hops.hooks.runtime import RuntimeHook
from airflow_hops.operators.base import HopsOperator
from airflow_hops.operators.links import LineageLink, ModelsLink
from airflow_hops.operators.people import Answer, Notifier, ask, notify

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.execution_time.hitl import HITLUser

Duration = timedelta | float

APPROVE, REJECT = "Promote to 100%", "Roll back"
"""The answers to choose from where a person is asked."""
_ON_APPROVAL_TIMEOUT = {"roll_back": REJECT, "promote": APPROVE}


class RolloutOperator(HopsOperator):
    """Raises the canary's share of the traffic in steps, as long as live requests do not show that it is worse.

    At each step it waits until the canary has received ``min_requests`` requests and ``bake_time`` has passed. It then
    compares the canary with the stable version, and continues with the next step, waits for more requests, or rolls
    back: the canary gets no traffic and is unloaded. After the last step the canary is promoted (alias ``champion``).
    If the deployment became the champion at once, the task returns without starting a process.

    Its state is in the model's record: a retry, or another run of the same deployment, continues where the last look
    ended. Between looks it waits in the triggerer if it is deferrable, and in the worker otherwise.

    Args:
        deployment: Output of a :class:`~airflow_hops.operators.deploy.DeployModelOperator`. (templated)
        steps: The canary's shares in percent, ascending to 100. The rollout begins with the share that the deployment
            gave the canary; steps not above it are skipped.
        bake_time: Shortest duration of a step, as a timedelta or in seconds: one for all steps, or one for each.
            Without one for 100%, a canary that passed the step before is promoted at once.
        min_requests: Requests that the canary must receive in a step.
        timeout: Longest duration of a step before it can be judged, as a timedelta or in seconds.
        on_timeout: What happens to the canary then: ``roll_back``, or ``leave`` it with its present share.
        approval: Whether to ask a person in Airflow before 100%.
        approval_timeout: How long to wait for the answer; None waits forever.
        on_approval_timeout: What a missing answer means: ``roll_back`` or ``promote``.
        assigned_users: Who may answer, each as ``{"id": ..., "name": ...}``; None for everyone who may answer for the
            DAG.
        max_error_increase: Tolerated increase of the share of failed requests, and of that of refused requests, 0 to 1.
        significance: Chance that the whole rollout ends a canary that keeps its limits.
        max_latency_ratio: Tolerated ratio of latencies, of the median and of the 99th percentile.
        latency_tolerance_ms: Tolerated increase of them in milliseconds, whatever the ratio.
        max_prediction_distance: Tolerated Kolmogorov–Smirnov distance of the predictions, 0 to 1; None for any.
        max_loss_increase: Tolerated increase of the mean loss on live labels, as a share of the stable version's.
        min_labels: Labelled rows that each version needs for a comparison.
        keep_versions: Versions that stay loaded after a promotion, the promoted one included.
        poll_interval: How often to read the server's counts while waiting.
        look_interval: Longest wait before the next look.
        deferrable: Whether to wait in the triggerer, without a worker slot; by default ``[operators]
            default_deferrable``.
        on_promoted: Airflow's notifiers for a promotion. Their templates can name ``rollout``, a
            :class:`~airflow_hops.core.contract.properties.RolloutProperties`. A retry tells again.
        on_rolled_back: Notifiers for a rollback.
        model_server_conn_id: Connection of type ``model_server``; None for the server that the ``hops`` connection
            names. (templated)

    Raises:
        ValueError: ``on_approval_timeout`` is unknown.
    """

    entry: ClassVar[str] = "airflow_hops.ml.stages.rollout:look"
    output_kind = "rollout"
    input_arguments = ("deployment",)
    operator_extra_links = (ModelsLink(), LineageLink())
    cacheable: ClassVar[bool] = False
    templated = ("model_server_conn_id",)

    def __init__(
        self,
        *,
        deployment: Any,
        steps: Sequence[int] = (5, 25, 50, 100),
        bake_time: Duration | Sequence[Duration] = timedelta(seconds=0),
        min_requests: int = 500,
        timeout: Duration = timedelta(hours=1),
        on_timeout: Literal["roll_back", "leave"] = "roll_back",
        approval: bool = False,
        approval_timeout: timedelta | None = None,
        on_approval_timeout: Literal["roll_back", "promote"] = "roll_back",
        assigned_users: Sequence[HITLUser] | None = None,
        max_error_increase: float = 0.01,
        significance: float = 0.01,
        max_latency_ratio: float = 2.0,
        latency_tolerance_ms: float = 10.0,
        max_prediction_distance: float | None = None,
        max_loss_increase: float = 0.1,
        min_labels: int = 50,
        keep_versions: int = 2,
        poll_interval: Duration = timedelta(seconds=1),
        look_interval: Duration = timedelta(seconds=60),
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        on_promoted: Notifier | Sequence[Notifier] = (),
        on_rolled_back: Notifier | Sequence[Notifier] = (),
        model_server_conn_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.store_arguments(locals())
        if on_approval_timeout not in _ON_APPROVAL_TIMEOUT:
            raise ValueError(
                f"on_approval_timeout is {on_approval_timeout!r}; expected one of {tuple(_ON_APPROVAL_TIMEOUT)}"
            )
        self.limits = Limits(**{each.name: getattr(self, each.name) for each in fields(Limits)})
        self._answer: dict[str, Any] | None = None

    def step_params(self, context: Context) -> dict[str, Any]:
        """The plan, what is tolerated, and what a person has answered."""
        plan = Plan.of(
            self.steps,
            _seconds(self.bake_time),
            min_requests=self.min_requests,
            timeout_s=_seconds(self.timeout),
            on_timeout=self.on_timeout,
            approval=self.approval,
            keep_versions=self.keep_versions,
            look_s=_seconds(self.look_interval),
        )
        return {"plan": asdict(plan), "limits": asdict(self.limits), "answer": self._answer}

    def step_services(self) -> Mapping[str, str]:
        """The model server of the connection, where one is named."""
        return model_server_services(self.model_server_conn_id)

    def execute(self, context: Context) -> Any:
        """Runs the step, and tells people what came of the canary."""
        value = super().execute(context)
        rollout = RolloutProperties.of(Artifact.from_dict(value))
        notifiers = {PROMOTED: self.on_promoted, ROLLED_BACK: self.on_rolled_back}.get(rollout.decision, ())
        if rollout.model_name is not None:
            self._keep_cards(context, rollout.model_name)
        notify(notifiers, context, rollout=rollout)
        return value

    def run_step(self, hook: RuntimeHook, context: Context) -> StepResult:
        """Looks, and waits for the next look, until it is decided; or writes the artifact where nothing is to be."""
        from airflow_hops.triggers.rollout import RolloutTrigger  # it would cost every DAG file what it imports

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
                    default=_ON_APPROVAL_TIMEOUT[self.on_approval_timeout],
                    timeout=self.approval_timeout,
                    note="Why; kept with the model",
                    assigned_users=self.assigned_users,
                )
            trigger = RolloutTrigger(
                **{name: value for name, value in result.value["waiting"].items() if name != "text"},
                poll_s=_seconds(self.poll_interval),
                conn_id=self.model_server_conn_id or self.hops_conn_id,
            )
            if self.deferrable:
                self.defer(trigger=trigger, method_name="resume")
            asyncio.run(trigger.wait())

    def resume(self, context: Context, event: Any) -> Any:
        """Looks again, after the triggerer has waited.

        Args:
            context: Airflow's.
            event: Why it has ended the wait.
        """
        return self.execute(context)

    def execute_complete(self, context: Context, event: Mapping[str, Any]) -> Any:
        """Goes on with what the person answered.

        Args:
            context: Airflow's.
            event: The answer: ``chosen_options``, ``params_input``, ``responded_by_user``, ``responded_at``.
        """
        answer = Answer.of(event, self.approval_timeout)
        self._answer = {"approved": answer.choice == APPROVE, "by": answer.by, "note": answer.note, "at": answer.at}
        return self.execute(context)

    def _already_champion(self, hook: RuntimeHook, context: Context) -> StepResult | None:
        """The artifact of a deployment that is the champion; None for a canary's."""
        spec = self.build_spec(hook, context)
        (deployment,) = spec.inputs["deployment"]
        of = DeploymentProperties.of(deployment)
        if of.mode != "champion" or spec.output is None:
            return None
        facts = RolloutProperties(
            model_name=of.model_name,
            version=of.version,
            decision="champion",
            reasons=("it is the champion already: there is nothing to compare it with",),
            champion=of.version,
            traffic=of.traffic,
        ).to_dict()
        with hook.store.create(spec.output.uri, spec.output.kind, spec.producer, inputs=spec.inputs) as writer:
            (writer.path / "rollout.json").write_text(json.dumps(facts, indent=1) + "\n")
            artifact = writer.commit(properties=facts)
        return StepResult(value=artifact.to_dict(), is_artifact=True, seconds={"start_up": 0.0, "work": 0.0})


def _seconds(duration: Duration | Sequence[Duration]) -> Any:
    if isinstance(duration, Sequence):
        return [_seconds(each) for each in duration]
    return duration.total_seconds() if isinstance(duration, timedelta) else float(duration)
