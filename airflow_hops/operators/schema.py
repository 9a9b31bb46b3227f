"""The schema of a pipeline's examples, inferred once and frozen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_hops.artifacts import Producer, as_cached
from airflow_hops.hooks.runtime import RuntimeHook
from airflow_hops.operators.base import HopsOperator
from airflow_hops.protocol import StepResult

if TYPE_CHECKING:
    from airflow.sdk import Context


class SchemaOperator(HopsOperator):
    """Infers the TFDV schema on the first run, and returns that same schema in every later one.

    The artifact ``schema`` holds ``schema.pbtxt`` and lies at one address per pipeline,
    ``<store>/<dag_id>/_frozen/<name>/schema``; once it is there, no process is started.

    Args:
        statistics: The output of ``StatisticsOperator``, whose split ``train`` counts on the first run (templated).
        name: Name of the frozen schema; the task's id by default (templated).
        infinity_norm: Threshold of the drift and skew comparators of strings: L-infinity distance of the shares of
            values, 0 to 1; None for 0.05.
        jensen_shannon: Threshold of the comparators of numbers: Jensen-Shannon divergence, 0 to 1; None for 0.2.
        max_domain_values: A string feature with at most so many distinct values gets a domain; None for 200.
        presence_tolerance: How far the share of present values of an optional feature may fall, 0 to 1; None for 0.1.
        **kwargs: As :class:`~airflow_hops.operators.base.HopsOperator`.
    """

    entry = "airflow_hops.runtime.schema:run"
    output_kind = "schema"
    template_fields: Sequence[str] = (*HopsOperator.template_fields, "statistics", "name")

    def __init__(
        self,
        *,
        statistics: Any,
        name: str | None = None,
        infinity_norm: float | None = None,
        jensen_shannon: float | None = None,
        max_domain_values: int | None = None,
        presence_tolerance: float | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.statistics = statistics
        self.name = name
        self.infinity_norm = infinity_norm
        self.jensen_shannon = jensen_shannon
        self.max_domain_values = max_domain_values
        self.presence_tolerance = presence_tolerance

    def step_inputs(self) -> Mapping[str, Any]:
        """The statistics."""
        return {"statistics": self.statistics}

    def step_params(self, context: Context) -> dict[str, Any]:
        """The thresholds that were given."""
        given = {
            "infinity_norm": self.infinity_norm,
            "jensen_shannon": self.jensen_shannon,
            "max_domain_values": self.max_domain_values,
            "presence_tolerance": self.presence_tolerance,
        }
        return {name: value for name, value in given.items() if value is not None}

    def output_uri(self, hook: RuntimeHook, producer: Producer) -> str:
        """The frozen schema's address."""
        return hook.store.uri(producer.dag_id, "_frozen", self.name or producer.task_id, "schema")

    def run_step(self, hook: RuntimeHook, context: Context) -> StepResult:
        """Returns the frozen schema, or starts the step that infers it."""
        uri = self.output_uri(hook, Producer(context["ti"].dag_id, context["ti"].run_id, self.task_id))
        if hook.store.exists(uri):
            self.log.info("Frozen: %s", uri)
            # Thresholds and domains are edited there by hand; what is held against them must not come from the cache.
            frozen = as_cached(hook.store.accept_edit(uri, "schema.pbtxt"))
            return StepResult(value=frozen.to_dict(), is_artifact=True, seconds={"start_up": 0.0, "work": 0.0})
        return hook.run(self.build_spec(hook, context), launcher=self.launcher(hook), cache=False)
