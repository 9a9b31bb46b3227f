"""Validation of examples against the schema."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from airflow.sdk.bases.branch import BranchMixIn
from airflow.sdk.exceptions import AirflowFailException

from airflow_hops.artifacts import Artifact
from airflow_hops.operators.base import HopsOperator

if TYPE_CHECKING:
    from airflow.sdk import Context

Action = Literal["fail", "warn", "branch"]
_ACTIONS = ("fail", "warn", "branch")
_SEVERITIES = ("error", "warning")


class ValidateExamplesOperator(HopsOperator, BranchMixIn):
    """Validates the statistics of ``examples`` against the ``schema``, and fails, warns or branches.

    The artifact ``anomalies`` holds ``<split>.pbtxt`` and ``anomalies.json``; it is published in any case.

    Args:
        statistics: The output of ``StatisticsOperator`` (templated).
        schema: The output of ``SchemaOperator`` (templated).
        previous: Statistics of an earlier span, for the schema's drift comparators (templated).
        splits: Splits to validate; None for all (templated).
        on_anomaly: What to do at each severity, ``{"error": "fail", "warning": "warn"}`` by default; a single word is
            for errors. "fail" fails the task without a retry, "warn" logs, "branch" follows ``otherwise``.
        follow: Task ids to follow when nothing branches; with "branch" only.
        otherwise: Task ids to follow when an anomaly branches.
        **kwargs: As :class:`~airflow_hops.operators.base.HopsOperator`.

    Raises:
        ValueError: ``on_anomaly`` has an unknown severity or action, or task ids to branch to are missing.
    """

    entry = "airflow_hops.runtime.validation:run"
    output_kind = "anomalies"
    template_fields: Sequence[str] = (*HopsOperator.template_fields, "statistics", "schema", "previous", "splits")

    def __init__(
        self,
        *,
        statistics: Any,
        schema: Any,
        previous: Any = None,
        splits: Sequence[str] | None = None,
        on_anomaly: Action | Mapping[str, Action] = "fail",
        follow: str | Sequence[str] | None = None,
        otherwise: str | Sequence[str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.statistics = statistics
        self.schema = schema
        self.previous = previous
        self.splits = splits
        given = {"error": on_anomaly} if isinstance(on_anomaly, str) else dict(on_anomaly)
        self.on_anomaly: dict[str, Action] = {"error": "fail", "warning": "warn", **given}
        self.follow = _task_ids(follow)
        self.otherwise = _task_ids(otherwise)
        for severity, action in self.on_anomaly.items():
            if severity not in _SEVERITIES or action not in _ACTIONS:
                raise ValueError(
                    f"on_anomaly has {severity!r}: {action!r}, expected one of {_SEVERITIES} with one of {_ACTIONS}"
                )
        if "branch" in self.on_anomaly.values() and not (self.follow or self.otherwise):
            raise ValueError("on_anomaly='branch' needs the task ids to go to: follow=..., otherwise=...")

    def step_inputs(self) -> Mapping[str, Any]:
        """Statistics, schema and, where given, the earlier statistics."""
        return {"statistics": self.statistics, "schema": self.schema, "previous": self.previous}

    def step_params(self, context: Context) -> dict[str, Any]:
        """The splits."""
        return {"splits": list(self.splits) if self.splits else None}

    def execute(self, context: Context) -> Any:
        """Validates, then acts by the severity of what was found."""
        value = super().execute(context)
        found = Artifact.from_dict(value).properties
        anomalies = {"error": found["errors"], "warning": found["warnings"]}
        failing = [text for s in _SEVERITIES if self.on_anomaly[s] == "fail" for text in anomalies[s]]
        if failing:
            # A failed task returns nothing; people and pages still want the artifact.
            context["ti"].xcom_push(key="return_value", value=value)
            raise AirflowFailException(f"{len(failing)} anomalies, see {value['uri']}:\n" + "\n".join(failing))
        for text in [*anomalies["error"], *anomalies["warning"]]:
            self.log.warning("%s", text)
        if "branch" in self.on_anomaly.values():
            branching = any(anomalies[s] for s in _SEVERITIES if self.on_anomaly[s] == "branch")
            self.do_branch(context, self.otherwise if branching else self.follow)
        return value


def _task_ids(given: str | Sequence[str] | None) -> list[str]:
    return [given] if isinstance(given, str) else list(given or [])
