"""Makes traffic, labels, loaded versions and registry what the record says; again and again with one outcome."""

from __future__ import annotations

import contextlib
import time

from airflow_hops.core.contract.artifacts import HopsError
from airflow_hops.core.contract.model_record import ModelRecord
from airflow_hops.core.contract.rollout.decision import LEFT, Decision
from airflow_hops.ml.model_server import ModelServer
from airflow_hops.ml.step.context import StepContext
from airflow_hops.ml.tracking import ModelRegistry

_IN_EFFECT_S = 10.0
"""How long a server may take to read its traffic file before its other versions are unloaded all the same."""


def enforce(server: ModelServer, model_name: str, record: ModelRecord) -> None:
    """Gives the server the shares that were decided, where it has others."""
    if record.traffic and server.traffic(model_name) != record.traffic:
        server.set_traffic(model_name, record.traffic)


def settle(
    context: StepContext,
    server: ModelServer,
    model_name: str,
    version: int,
    record: ModelRecord,
    decision: Decision,
    keep_versions: int,
) -> None:
    """Applies a decision that is in the record.

    Where a successor is tried already, only the registry is put right.

    Args:
        context: The step.
        server: The model server.
        model_name: Model name.
        version: The version that was decided on.
        record: The model's record.
        decision: The decision.
        keep_versions: Versions that stay loaded, the champion included.

    Raises:
        HopsError: MLflow, or a server that is steered by RPC, is away.
    """
    champion = record.champion
    if champion is None:
        return
    if record.challenger is None:
        enforce(server, model_name, record)
        _wait_for_traffic(server, model_name, champion.version)
        server.set_labels(model_name, {"stable": champion.version})
        configured = server.configured(model_name)
        former = [v for v in record.champions() if v != champion.version and v in configured]
        wanted = sorted([champion.version, *former[: keep_versions - 1]])
        if configured != wanted:
            server.serve(model_name, wanted)
    if decision.decision != LEFT:
        _register(context, model_name, version, record, decision)


def _wait_for_traffic(server: ModelServer, model_name: str, version: int) -> None:
    """Returns once all requests go to a version; of a server that is away nobody is asking anything."""
    deadline_s = time.monotonic() + _IN_EFFECT_S
    with contextlib.suppress(HopsError):
        while time.monotonic() < deadline_s:
            shares = {v: entry.get("traffic_percent") for v, entry in server.counts(model_name).items()}
            if {v: share for v, share in shares.items() if share} in ({version: 100.0}, {}):
                return
            time.sleep(0.05)


def _register(context: StepContext, model_name: str, version: int, record: ModelRecord, decision: Decision) -> None:
    registry = ModelRegistry(context.spec.services.get("tracking_uri", ""), model_name)
    champion, challenger = record.champion, record.challenger
    registry.point_aliases(champion.version if champion else None, challenger.version if challenger else None)
    registry.tag(version, "hops.rollout", decision.decision)
    registry.tag(version, "hops.rollout_reasons", "; ".join(decision.reasons)[:5000])
