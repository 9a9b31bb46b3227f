"""Operator that rehearses the monitor of a served model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from airflow_hops.core.artifacts.artifact import Artifact, Producer
from airflow_hops.core.monitor_reports import note_report
from airflow_hops.core.names import check_known
from airflow_hops.core.retraining.policy import RetrainingPolicy
from airflow_hops.core.skew import SkewOptions
from airflow_hops.core.steps.protocol import StepResult
from airflow_hops.core.store import ArtifactStore
from airflow_hops.core.times import in_seconds
from airflow_hops.extensions.rehearsal.core.rehearsal import REHEARSAL, REPORT_FILE, Rehearsal, RehearsalOptions
from airflow_hops.extensions.rehearsal.core.requirements import RequirementsFailed, check_requirements, failures
from airflow_hops.operators.base import HopsOperator, producer_of
from airflow_hops.operators.links import LINEAGE_LINK, SKEW_LINK
from airflow_hops.operators.skew import SkewOperator, skip_until_served
from airflow_hops.runner.arguments import Count, Length, ModelName, check_arguments
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
            require=["amount: units within 1 day", "false alarms: 1/month"],
        )

    Args:
        model_name: The served model. (templated)
        captured: Output of ``IngestOperator``: captured requests, as for ``SkewOperator``; None for those that the
            connection names. (templated)
        skew: Arguments of the monitor's ``SkewOperator`` by name; None for those of its newest recorded run, or else
            the defaults.
        policy: The policy that decides; None for the default.
        every: Length of a window; None for the time between the monitor's last comparisons, or else a day.
        tries: Windows that each fault is planted into: the newest, at most 30, and then some that have rows of two.
        features: Features to plant faults into; None for all that are compared.
        rows: Kind of the rows: ``captured`` requests, or held-out rows of the ``training``; None for captured ones if
            there are two windows of them.
        require: Faults that must be found, as ``FEATURE: FAULT [SIZE] [within TIME]``; ``false alarms: 1/month`` is the
            most comparisons of unchanged rows that may find something.
        **kwargs: As :class:`~airflow_hops.operators.base.HopsOperator`.

    Raises:
        ValueError: an argument is out of range, or a requirement has another form.
    """

    entry = "airflow_hops.extensions.rehearsal.ml.stage:run"
    output_kind = REHEARSAL
    has_asset = False
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
        tries: Count = 60,
        features: Sequence[str] | None = None,
        rows: Literal["captured", "training"] | None = None,
        require: Sequence[str] = (),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.model_name = model_name
        self.captured = captured
        self.skew = skew
        self.policy = policy
        self.every = every
        self.tries = tries
        self.features = features
        self.rows = rows
        self.require = require
        self.check_arguments(RehearseOperator)
        check_requirements(require)
        self.options()

    def options(self) -> RehearsalOptions:
        """Returns the options of the step. Raises BadInput if one is out of range."""
        skew = None if self.skew is None else monitor_options(self.skew)
        policy = None if self.policy is None else self.policy.to_dict()
        return RehearsalOptions.of(self, skew=skew, policy=policy)

    def step_params(self, context: Context) -> dict[str, Any]:
        """Returns the options of the rehearsal."""
        return self.options().to_dict()

    def run_step(self, hook: RuntimeHook, context: Context) -> StepResult:
        """Runs the step, lists the report, and checks the requirements; skips the task while no version serves.

        Raises:
            AirflowSkipException: no version serves yet.
            RequirementsFailed: a requirement does not hold.
        """
        skip_until_served(hook.store, self.model_name, context)
        result = super().run_step(hook, context)
        report = list_rehearsal(hook.store, Artifact.from_dict(result.value), producer_of(context))
        if failed := failures(report, self.require):
            raise RequirementsFailed(failed)
        return result


def monitor_options(skew: Mapping[str, Any]) -> dict[str, Any]:
    """Returns arguments of a ``SkewOperator`` as options of the comparison.

    Raises:
        BadInput: one is unknown, or has another type or value.
    """
    names = {each.name.removesuffix("_s"): each.name for each in fields(SkewOptions)}
    for name in skew:
        check_known("skew", name, names)
    check_arguments(SkewOperator.__init__, skew, ())
    return {names[name]: in_seconds(value) for name, value in skew.items() if name != "model_name"}


def list_rehearsal(store: ArtifactStore, artifact: Artifact, producer: Producer) -> Rehearsal:
    """Adds a rehearsal to the reports of its model, which the pages list; returns it."""
    report = Rehearsal.from_dict(store.read_json(store.file(artifact.uri, REPORT_FILE)))
    end = report.windows[-1].end or None
    note_report(store, report.model_name, artifact, [report.version], end, producer)
    return report
