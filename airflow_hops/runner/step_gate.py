"""What extensions do before a step starts, and when it has ended (``airflow_hops.step_gates``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_hops.core.steps.protocol import StepResult, StepSpec

if TYPE_CHECKING:
    from airflow_hops.runner.runtime import RuntimeHook


class StepGate:
    """Decides whether steps may start; each step that is not taken from the cache passes all gates."""

    def admit(self, hook: RuntimeHook, spec: StepSpec) -> None:
        """Raises an error if the step may not start."""

    def ended(self, hook: RuntimeHook, spec: StepSpec, result: StepResult) -> None:
        """Hears of a step that has succeeded."""
