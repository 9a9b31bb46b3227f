"""Watches a canary, and promotes it or rolls it back."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_hops.hooks.runtime import RuntimeHook
from airflow_hops.operators.base import HopsOperator
from airflow_hops.protocol import StepResult

if TYPE_CHECKING:
    from airflow.sdk import Context

Duration = timedelta | float


class RolloutOperator(HopsOperator):
    """Decides on the canary of a deployment by what live requests show.

    Waits until the canary was asked ``min_requests`` times and watched for ``bake_time``, compares it with the stable
    version, and promotes it (all traffic, alias ``champion``) or rolls it back (no traffic, unloaded). A deployment
    that became the champion at once has nothing to compare with: the task returns without starting a process.

    Args:
        deployment: Output of a :class:`~airflow_hops.operators.deploy.DeployModelOperator`. (templated)
        min_requests: Requests that the canary must have been asked.
        bake_time: How long it must have been watched, as a timedelta or in seconds.
        timeout: After how long the watch ends, though there were too few requests.
        on_timeout: What becomes of the canary then: ``roll_back``, or ``leave`` with the share that it has.
        max_error_increase: Tolerated increase of the share of failed requests, 0 to 1. Beyond it the canary is rolled
            back if Fisher's exact test gives chance at most ``significance``.
        significance: See ``max_error_increase``.
        max_latency_ratio: Tolerated ratio of the median latency (from 1,000 requests on, of the 99th percentile too).
        latency_tolerance_ms: Tolerated increase of it in milliseconds, whatever the ratio.
        keep_versions: Versions that stay loaded after a promotion, the promoted one included.
        poll_interval: How often to look at the server.
    """

    entry: ClassVar[str] = "airflow_hops.runtime.rollout:run"
    output_kind = "rollout"
    cacheable: ClassVar[bool] = False
    template_fields: Sequence[str] = (*HopsOperator.template_fields, "deployment")

    def __init__(
        self,
        *,
        deployment: Any,
        min_requests: int = 500,
        bake_time: Duration = timedelta(seconds=0),
        timeout: Duration = timedelta(hours=1),
        on_timeout: str = "roll_back",
        max_error_increase: float = 0.01,
        significance: float = 0.01,
        max_latency_ratio: float = 2.0,
        latency_tolerance_ms: float = 10.0,
        keep_versions: int = 2,
        poll_interval: Duration = timedelta(seconds=1),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.deployment = deployment
        self.min_requests = min_requests
        self.bake_time = bake_time
        self.timeout = timeout
        self.on_timeout = on_timeout
        self.max_error_increase = max_error_increase
        self.significance = significance
        self.max_latency_ratio = max_latency_ratio
        self.latency_tolerance_ms = latency_tolerance_ms
        self.keep_versions = keep_versions
        self.poll_interval = poll_interval

    def step_params(self, context: Context) -> dict[str, Any]:
        """Keyword arguments of the entry function."""
        return {
            "min_requests": self.min_requests,
            "bake_time_s": _seconds(self.bake_time),
            "timeout_s": _seconds(self.timeout),
            "on_timeout": self.on_timeout,
            "max_error_increase": self.max_error_increase,
            "significance": self.significance,
            "max_latency_ratio": self.max_latency_ratio,
            "latency_tolerance_ms": self.latency_tolerance_ms,
            "keep_versions": self.keep_versions,
            "poll_s": _seconds(self.poll_interval),
        }

    def step_inputs(self) -> Mapping[str, Any]:
        """Upstream artifacts by role."""
        return {"deployment": self.deployment}

    def run_step(self, hook: RuntimeHook, context: Context) -> StepResult:
        """Runs the step, or writes its artifact right here where nothing is to be decided."""
        spec = self.build_spec(hook, context)
        (deployment,) = spec.inputs["deployment"]
        if deployment.properties.get("mode") != "champion" or spec.output is None:
            return super().run_step(hook, context)
        version = deployment.properties.get("version")
        facts = {
            "model_name": deployment.properties.get("model_name"),
            "version": version,
            "decision": "champion",
            "reasons": ["it is the champion already: there is nothing to compare it with"],
            "champion": version,
            "traffic": dict(deployment.properties.get("traffic") or {}),
        }
        with hook.store.create(spec.output.uri, spec.output.kind, spec.producer, inputs=spec.inputs) as writer:
            (writer.path / "rollout.json").write_text(json.dumps(facts, indent=1) + "\n")
            artifact = writer.commit(properties=facts)
        return StepResult(value=artifact.to_dict(), is_artifact=True, seconds={"start_up": 0.0, "work": 0.0})


def _seconds(duration: Duration) -> float:
    return duration.total_seconds() if isinstance(duration, timedelta) else float(duration)
