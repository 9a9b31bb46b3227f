"""Operator that rehearses the monitor of a served model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.monitor_reports import note_report
from airflow_hops.core.retraining.policy import RetrainingPolicy
from airflow_hops.core.steps.protocol import StepResult
from airflow_hops.extensions.rehearsal.core.rehearsal import REPORT_FILE, Rehearsal, RehearsalOptions
from airflow_hops.extensions.rehearsal.core.requirements import RequirementsFailed, check_requirements, failures
from airflow_hops.operators.base import HopsOperator, producer_of
from airflow_hops.operators.links import LINEAGE_LINK, SKEW_LINK
from airflow_hops.operators.skew import skip_until_served
from airflow_hops.runner.arguments import Count, Length, ModelName, WholeNumber
from airflow_hops.runner.runtime import RuntimeHook

if TYPE_CHECKING:
    from airflow.sdk import Context


class RehearseOperator(HopsOperator):
    """Plants faults into copies of a served model's rows, and says what its monitor would find, when, and what not.

    The artifact ``rehearsal`` holds ``rehearsal.json``, which the page *Skew* shows. Nothing else is changed: no model,
    no captured row, no asset. The task is skipped while no version of the model serves, and fails if a requirement does
    not hold, with the report in place.

    Example::

        RehearseOperator(
            task_id="rehearse", model_name="churn", policy=POLICY,
            require=["amount: units within 1 day"], false_alarms="1/month",
        )

    Args:
        model_name: The served model. (templated)
        captured: Output of ``IngestOperator``: captured requests, as for ``SkewOperator``; None for those that the
            connection names. (templated)
        skew: Arguments of the monitor's ``SkewOperator`` by name; None for those of its newest recorded run, or else
            the defaults.
        policy: The policy that decides; None for the default.
        every: Length of a window; None for the time between the monitor's last comparisons, or else a day.
        windows: Most windows of unchanged rows.
        tries: Windows that each fault is planted into; more than there are windows have rows of two.
        features: Features to plant faults into; None for all that are compared.
        rows: Kind of the rows: ``captured`` requests, or held-out rows of the ``training``; None for captured ones if
            there are two windows of them.
        require: Faults that must be found, as ``FEATURE: FAULT [SIZE] [within TIME]``.
        false_alarms: Most comparisons of unchanged rows that may find something, such as "1/month".
        seed: Seed of all draws: the report depends on rows and arguments alone.
        **kwargs: As :class:`~airflow_hops.operators.base.HopsOperator`.

    Raises:
        ValueError: an argument is out of range, or a requirement has another form.
    """

    entry = "airflow_hops.extensions.rehearsal.ml.stage:run"
    output_kind = "rehearsal"
    input_arguments = ("captured",)
    template_fields: Sequence[str] = (*HopsOperator.template_fields, "captured", "model_name")
    operator_extra_links = (SKEW_LINK, LINEAGE_LINK)
    cacheable: ClassVar[bool] = False  # captured rows are not among the inputs

    def __init__(
        self,
        *,
        model_name: ModelName,
        captured: Any = None,
        skew: Mapping[str, Any] | None = None,
        policy: RetrainingPolicy | None = None,
        every: Length | None = None,
        windows: Count = 30,
        tries: Count = 60,
        features: Sequence[str] | None = None,
        rows: Literal["captured", "training"] | None = None,
        require: Sequence[str] = (),
        false_alarms: str | None = None,
        seed: WholeNumber = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.model_name = model_name
        self.captured = captured
        self.skew = skew
        self.policy = policy
        self.every = every
        self.windows = windows
        self.tries = tries
        self.features = features
        self.rows = rows
        self.require = require
        self.false_alarms = false_alarms
        self.seed = seed
        self.check_arguments(RehearseOperator)
        check_requirements(require, false_alarms)
        RehearsalOptions.of(self, policy=None)

    def step_params(self, context: Context) -> dict[str, Any]:
        """Returns the options of the rehearsal."""
        policy = None if self.policy is None else self.policy.to_dict()
        return RehearsalOptions.of(self, policy=policy).to_dict()

    def run_step(self, hook: RuntimeHook, context: Context) -> StepResult:
        """Runs the step, lists the report, and checks the requirements; skips the task while no version serves.

        Raises:
            AirflowSkipException: no version serves yet.
            RequirementsFailed: a requirement does not hold.
        """
        skip_until_served(hook.store, self.model_name, context)
        result = super().run_step(hook, context)
        artifact = Artifact.from_dict(result.value)
        report = list_rehearsal(hook, artifact)
        note_report(hook.store, self.model_name, artifact, [report.version], None, producer_of(context))
        if failed := failures(report, self.require, self.false_alarms):
            raise RequirementsFailed(failed)
        return result


def list_rehearsal(hook: RuntimeHook, artifact: Artifact) -> Rehearsal:
    """Returns the report of a rehearsal."""
    return Rehearsal.from_dict(hook.store.read_json(hook.store.file(artifact.uri, REPORT_FILE)))
