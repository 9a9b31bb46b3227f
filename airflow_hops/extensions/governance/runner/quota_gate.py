"""Checks quotas before a step starts, and notes its use when it has ended."""

from __future__ import annotations

from airflow_hops.airflow_internals.tasks import gauge
from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.steps.protocol import StepSpec, json_object
from airflow_hops.core.store.files import reaching_store
from airflow_hops.extensions.governance.core.quota_limits import Quotas, applies_to
from airflow_hops.extensions.governance.core.quota_use import note_use, shares_of
from airflow_hops.runner.runtime import RuntimeHook, StepGate


def quotas_of(hook: RuntimeHook) -> Quotas | None:
    """Returns the quotas of a connection; None if it has none. Raises BadInput if they cannot be read."""
    where = f"connection {hook.hops_conn_id!r}: field 'quotas'"
    return Quotas.read(json_object(hook.settings.extra.get("quotas"), where), where)


class QuotaGate(StepGate):
    """Refuses steps that a quota of their connection does not allow."""

    def admit(self, hook: RuntimeHook, spec: StepSpec) -> None:
        """Raises BadInput if a quota of the connection does not allow a step to start."""
        quotas, problems = quotas_of(hook), list[str]()
        if quotas is None or not applies_to(spec):
            return
        quotas.check_ranks(spec, hook.hops_conn_id)
        with reaching_store(hook.settings.store):
            shares = shares_of(hook.store, quotas, spec.producer.dag_id, problems)
        for problem in problems:
            hook.log.warning("Not counted for the quotas: %s", problem)
        for each in shares:
            tags = {"dag_id": spec.producer.dag_id, "of": "dag" if each.dag_id else "team", "limit": each.name}
            gauge("hops.quota_used_percent", round(each.percent, 1), tags=tags)
        quotas.check_use(spec, shares, hook.hops_conn_id)

    def count(self, hook: RuntimeHook, artifact: Artifact) -> None:
        """Notes what a step used, so that quotas count it at once."""
        quotas = quotas_of(hook)
        if quotas is not None and quotas.shares(hook.store.dag_of(artifact.uri), {}):
            note_use(hook.store, artifact.uri)
