"""Requests a retraining, as an asset event, when the served requests have drifted."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset, BaseOperator
from airflow.sdk.exceptions import AirflowFailException

from airflow_hops.contract.artifacts import Artifact, BadInput
from airflow_hops.contract.skew import PIPELINE_FAULT, SkewProperties
from airflow_hops.hooks.runtime import RuntimeHook
from airflow_hops.operators.base import skipped
from airflow_hops.operators.links import LineageLink, SkewLink
from airflow_hops.store import ArtifactStore
from airflow_hops.store.model_records import read_record

if TYPE_CHECKING:
    from airflow.sdk import Context


class RequestRetrainingOperator(BaseOperator):
    """Emits an asset event if the verdict of a skew report is "drift"; otherwise the task is skipped with the reason.

    It asks once for the same training data within the cooldown, and not while a challenger is being rolled out. It
    never asks for a broken pipeline ("pipeline_fault"), whose features and faults are in the reason. The event's
    ``extra`` holds ``window_end``, ``drifted``, ``skew`` (the report's URI) and ``reason``. No step is started. A skip
    leaves the XCom ``refused``: ``why`` ("verdict", "pipeline_fault", "rollout" or "cooldown"), ``reason`` in words,
    and ``skew``.

    Args:
        skew: The output of ``SkewOperator``. (templated)
        asset: The asset whose event is the request; schedule the training DAG on it.
        cooldown: How long it does not ask again for the same training data.
        hops_conn_id: Connection of type ``hops``. (templated)
        **kwargs: As ``BaseOperator``.
    """

    template_fields: Sequence[str] = ("skew", "hops_conn_id")
    operator_extra_links = (SkewLink(), LineageLink())
    ui_color = "#dbe9f6"

    def __init__(
        self,
        *,
        skew: Any,
        asset: Asset,
        cooldown: timedelta = timedelta(days=1),
        hops_conn_id: str = RuntimeHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        super().__init__(outlets=[*kwargs.pop("outlets", []), asset], **kwargs)
        self.skew = skew
        self.asset = asset
        self.cooldown = cooldown
        self.hops_conn_id = hops_conn_id

    def execute(self, context: Context) -> dict[str, Any]:
        """Asks for a retraining, or raises with the reason why not."""
        try:
            skew = Artifact.from_dict(self.skew)
        except BadInput as error:
            raise AirflowFailException(f"input 'skew': {error}") from error
        try:
            store = RuntimeHook(self.hops_conn_id).store
        except BadInput as error:
            raise AirflowFailException(str(error)) from error
        facts = SkewProperties.of(skew)
        ti = context["ti"]
        if facts.why_not_learnt is not None:
            raise skipped(ti, _why_not(facts), why=facts.why_not_learnt, skew=skew.uri)
        reference = facts.reference
        challenger = _challenger(store, reference.model) if reference.model else None
        if challenger is not None:
            raise skipped(
                ti,
                f"version {challenger} of model {reference.model!r} is being rolled out: its outcome must be known "
                "first",
                why="rollout",
                skew=skew.uri,
            )
        state_uri = store.uri("_state", ti.dag_id, ti.task_id, "requested.json")
        requested, now = _read(store, state_uri), datetime.now(UTC)
        before = requested.get(reference.fingerprint)
        # The same run may ask again: a retry whose first try was ended before its event.
        if before is not None and before["run_id"] != ti.run_id:
            passed = now - datetime.fromisoformat(before["at"])
            if passed < self.cooldown:
                raise skipped(
                    ti,
                    f"already requested by run {before['run_id']} at {before['at']} for the same training data "
                    f"({reference.statistics}); the cooldown of {self.cooldown} ends in {self.cooldown - passed}",
                    why="cooldown",
                    skew=skew.uri,
                )
        since = f"the training data of version {reference.version}" if reference.version else reference.statistics
        reason = f"{', '.join(facts.drifted)} drifted from {since}"
        extra: dict[str, Any] = {
            "window_end": facts.window_end,
            "drifted": list(facts.drifted),
            "skew": skew.uri,
            "reason": reason,
        }
        context["outlet_events"][self.asset].extra = extra
        entry = {"at": now.isoformat(timespec="seconds"), "run_id": ti.run_id}
        store.write_text(state_uri, json.dumps({**requested, reference.fingerprint: entry}, indent=1))
        self.log.info("Retraining requested: %s", reason)
        return extra


def _why_not(facts: SkewProperties) -> str:
    """Why a verdict other than "drift" is no reason to retrain."""
    if facts.verdict != PIPELINE_FAULT:
        return f"the verdict is {facts.verdict!r}: there is nothing to retrain for"
    causes = facts.causes or dict.fromkeys(facts.lost, "all_missing")
    found = ", ".join(f"{name} ({cause})" for name, cause in causes.items())
    return f"the verdict is 'pipeline_fault': {found}; correct the source of the model's features: retraining would "
    "learn the fault"


def _challenger(store: ArtifactStore, model_name: str) -> int | None:
    challenger = read_record(store, model_name).challenger
    return challenger.version if challenger else None


def _read(store: ArtifactStore, uri: str) -> dict[str, Any]:
    try:
        return dict(store.read_json(uri))
    except FileNotFoundError:
        return {}
