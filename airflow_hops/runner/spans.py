"""OpenTelemetry spans of steps, below Airflow's span of their task (``[traces]``, or an SDK of the worker)."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from opentelemetry import trace

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.steps.protocol import Phase, StepResult, StepSpec


@contextlib.contextmanager
def step_span(spec: StepSpec) -> Iterator[Callable[[StepResult], None]]:
    """Traces a step: the span ``step.<stage>``, with one for each phase once the yielded function has the result.

    Its attributes are ``hops.entry``, and of the result ``hops.artifact`` (its address) and ``hops.cached``. Time
    between the phases and the end of the span went to fetching code and inputs, to the launcher, and to the store.
    """
    tracer = trace.get_tracer("airflow_hops")
    with tracer.start_as_current_span(f"step.{spec.step}", attributes={"hops.entry": spec.entry}) as span:

        def note(result: StepResult) -> None:
            if result.is_artifact:
                artifact = Artifact.from_dict(result.value)
                span.set_attributes({"hops.artifact": artifact.uri, "hops.cached": artifact.cached})
            work_s, start_up_s = (result.seconds.get(name, 0.0) for name in ("work", "start_up"))
            ended_at = result.ended_at or time.time()
            began_at = ended_at - work_s
            own = (Phase("start_up", began_at - start_up_s, began_at), Phase("work", began_at, ended_at))
            for phase in (*own, *result.phases):
                if phase.ended_at > phase.began_at:
                    child = tracer.start_span(
                        phase.name, attributes=dict(phase.attributes), start_time=_ns(phase.began_at)
                    )
                    for name, moment in phase.events.items():
                        child.add_event(name, timestamp=_ns(moment))
                    child.end(end_time=_ns(phase.ended_at))

        yield note


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
