"""OpenTelemetry spans of steps, below Airflow's span of their task (``[traces]``, or an SDK of the worker)."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from opentelemetry import trace

from airflow_hops.core.contract.artifacts import Artifact
from airflow_hops.core.contract.protocol import StepResult, StepSpec

_PHASES = ("start_up", "work")
_NS_PER_S = 1_000_000_000


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
            seconds = [result.seconds.get(phase, 0.0) for phase in _PHASES]
            at = time.time_ns() - round(sum(seconds) * _NS_PER_S)
            for phase, took in zip(_PHASES, seconds, strict=True):
                if took:
                    child, at = tracer.start_span(phase, start_time=at), at + round(took * _NS_PER_S)
                    child.end(end_time=at)

        yield note
