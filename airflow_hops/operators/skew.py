"""Training-serving skew of captured requests."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk.exceptions import AirflowSkipException

from airflow_hops.hooks.runtime import RuntimeHook
from airflow_hops.operators.base import HopsOperator
from airflow_hops.protocol import StepResult

if TYPE_CHECKING:
    from airflow.sdk import Context


class SkewOperator(HopsOperator):
    """Compares the requests that the server captured since last time with the champion's training data.

    The artifact ``skew`` holds ``report.json`` and ``report.pb``; its property ``verdict`` is "stable", "drift",
    "pipeline_fault" or "insufficient". Too few rows wait for the next run. While no model serves, the task is skipped.

    Args:
        model_name: The served model (templated).
        min_rows: Captured rows that it takes for a verdict.
        time_feature: The model's input that holds the row's own time, seconds since the epoch; None if it has none.
        **kwargs: As :class:`~airflow_hops.operators.base.HopsOperator`.
    """

    entry = "airflow_hops.runtime.skew:run"
    output_kind = "skew"
    template_fields: Sequence[str] = (*HopsOperator.template_fields, "model_name")
    cacheable: ClassVar[bool] = False  # captured rows are not among the inputs

    def __init__(
        self,
        *,
        model_name: str,
        min_rows: int = 5000,
        time_feature: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.model_name = model_name
        self.min_rows = min_rows
        self.time_feature = time_feature

    def step_params(self, context: Context) -> dict[str, Any]:
        """The model, and how many rows it takes."""
        return {"model_name": self.model_name, "min_rows": self.min_rows, "time_feature": self.time_feature}

    def run_step(self, hook: RuntimeHook, context: Context) -> StepResult:
        """Skips while no model serves; otherwise runs the step."""
        try:
            record = json.loads(hook.store.read_text(hook.store.uri("_models", f"{self.model_name}.json")))
        except FileNotFoundError:
            record = {}
        if not record.get("champion"):
            raise AirflowSkipException(f"no version of model {self.model_name!r} serves yet")
        return super().run_step(hook, context)
