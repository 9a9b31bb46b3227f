"""Step of a rollout: one poll, and the artifact after the decision."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.artifacts.properties import DeploymentProperties, RolloutProperties
from airflow_hops.core.errors import BadInput
from airflow_hops.core.models.logged_windows import logged_windows
from airflow_hops.core.models.model_record import read_record
from airflow_hops.core.performance import PerformanceOptions
from airflow_hops.core.rollout.decision import RolloutDecision
from airflow_hops.core.rollout.plan import Limits, RolloutPlan
from airflow_hops.core.times import now
from airflow_hops.ml.captured.snapshot import captured_requests
from airflow_hops.ml.model_server import ModelServer
from airflow_hops.ml.rollout.canary import CanaryRollout
from airflow_hops.ml.step.context import StepContext


def poll(
    context: StepContext,
    *,
    plan: Mapping[str, Any],
    limits: Mapping[str, Any],
    answer: Mapping[str, Any] | None = None,
    labels: Mapping[str, Any] | None = None,
) -> Artifact | dict[str, object]:
    """Polls the canary of the input ``deployment`` once, and takes the step that is due.

    Args:
        context: The step.
        plan: Fields of :class:`~airflow_hops.core.rollout.plan.RolloutPlan`.
        limits: Fields of :class:`~airflow_hops.core.rollout.plan.Limits`.
        answer: A person's answer: ``approved``, ``by``, ``note``, ``at``.
        labels: Fields of :class:`~airflow_hops.core.performance.PerformanceOptions`; None for clients' feedback.

    Returns:
        The artifact after the decision. Before, ``{"waiting": {"text", "until", "requests", "server_since", "url",
        "model_name", "version"}}``, or ``{"question": Markdown}``.

    Raises:
        BadInput: a value is invalid, the deployment is not of this store, or the server does not split traffic or does
            not count requests by version.
    """
    deployment = context.input("deployment")
    properties = DeploymentProperties.of(deployment)
    model_name, version = properties.model_name, properties.version
    if model_name is None or version is None:
        raise BadInput(
            f"deployment {deployment.uri}: properties are {dict(deployment.properties)!r}; expected model_name and "
            "version, as DeployModelOperator gives them"
        )
    server = ModelServer.of(context.spec.services, context.store)
    if not server.splits_traffic:
        raise BadInput(
            f"model {model_name!r}: {server.at} is a tensorflow_model_server, which neither splits traffic nor "
            "counts by version; use PromoteModelOperator, or put the bundled server in front of it (python -m "
            f"airflow_hops.serving --upstream={server.at}) and name that one in the connection"
        )
    if server.reads_log and not logged_windows(context.store, model_name):
        raise BadInput(
            f"model {model_name!r}: an endpoint of the kind {server.at.kind!r} does not count requests by version, and "
            "no window of its log was ingested; ingest its log with CapturedSource first, and then while it waits"
        )
    if limits.get("wait_for_labels") and server.reads_log:
        if not labels:
            raise BadInput(
                f"model {model_name!r}: limits['wait_for_labels'] needs labels: its endpoint has no feedback"
            )
    elif limits.get("wait_for_labels"):
        captured_requests(context, model_name)  # fails if there are none whose labels could come
    joined = PerformanceOptions(**{**labels, "model_name": model_name}) if labels else None
    rollout = CanaryRollout(context, server, model_name, version, RolloutPlan.of(**plan), Limits(**limits), joined)
    outcome = rollout.poll(answer)
    if isinstance(outcome, RolloutDecision):
        return _write(rollout, outcome)
    if isinstance(outcome, str):
        return {"question": outcome}
    context.progress(0.0, outcome.text)
    url = f"{server.at.rest_client().address}/v1/stats" if server.has_stats else ""
    waiting = {**asdict(outcome), **({} if url else {"requests": None})}
    return {"waiting": {**waiting, "url": url, "model_name": model_name, "version": version}}


def _write(rollout: CanaryRollout, decision: RolloutDecision) -> Artifact:
    context, version = rollout.context, rollout.version
    record = read_record(context.store, rollout.model_name)
    facts = RolloutProperties(
        model_name=rollout.model_name,
        version=version,
        decision=decision.decision,
        reasons=decision.reasons,
        champion=record.champion.version if record.champion else version,
        traffic={str(v): percent for v, percent in record.traffic.items()},
    ).to_dict()
    context.progress(1.0, f"version {version}: {decision.decision} ({'; '.join(decision.reasons)})")
    metrics = {
        "canary_requests": float(decision.canary.requests),
        "canary_errors": float(decision.canary.errors),
        "stable_requests": float(decision.stable.requests),
        "stable_errors": float(decision.stable.errors),
        "watched_s": round(decision.watched_s, 3),
    }
    steps = [event.to_dict() for event in record.history if event.version == version]
    with context.output() as writer:
        document = {
            **facts,
            **decision.numbers(),
            "plan": asdict(rollout.plan),
            "limits": asdict(rollout.limits),
            "history": steps,
            "at": now(),
        }
        (writer.path / "rollout.json").write_text(json.dumps(document, indent=1, allow_nan=False) + "\n")
        return writer.commit(metrics=metrics, properties=facts)
