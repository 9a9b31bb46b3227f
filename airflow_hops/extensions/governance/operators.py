"""Operator that collects garbage in the artifact store, captured requests and MLflow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from airflow_hops.core.errors import HopsError
from airflow_hops.extensions.governance.core.rule import Removal, RetentionRule
from airflow_hops.extensions.governance.runner.retention import garbage_collection
from airflow_hops.operators.base import HopsTask, airflow_error
from airflow_hops.runner.arguments import NotNegative, WholeNumber
from airflow_hops.runner.runtime import RuntimeHook

if TYPE_CHECKING:
    from airflow.sdk import Context


class CollectGarbageOperator(HopsTask):
    """Removes the artifacts, captured requests and MLflow runs that nothing needs, as ``airflow hops gc`` does.

    Champions, challengers, former champions, frozen schemas, the newest decisions of retraining monitors, active runs
    and the runs that the rule retains are retained with all their inputs, down to the raw snapshot. The XCom is a
    mapping: ``removed`` and ``removed_bytes``, ``kept`` and ``kept_bytes``, and ``deleted``, which is False for a dry
    run. Only one collection may work on a store at a time: set ``max_active_runs=1`` for its DAG.

    Args:
        delete: Whether to remove them; by default, the task only logs them.
        keep_days: Age in days up to which a run is retained, counted from its newest artifact, or captured requests.
        keep_runs: Number of newest runs of each DAG to retain.
        keep_versions: Number of newest former champions of each model to retain for a rollback.
        unknown_runs: Whether to remove artifacts of runs that this Airflow does not know, such as deleted ones; they
            may be those of another Airflow with the same store.
        hops_conn_id: Connection of type ``hops``. (templated)
        **kwargs: Arguments of ``BaseOperator``.

    Example:
        >>> from airflow.sdk import DAG
        >>> from airflow_hops.extensions.governance import CollectGarbageOperator
        >>> with DAG("garbage", schedule="@weekly", max_active_runs=1):
        ...     CollectGarbageOperator(task_id="collect", delete=True, keep_days=60).delete
        True
    """

    template_fields: Sequence[str] = ("hops_conn_id",)

    def __init__(
        self,
        *,
        delete: bool = False,
        keep_days: NotNegative = 30,
        keep_runs: WholeNumber = 10,
        keep_versions: WholeNumber = 3,
        unknown_runs: bool = False,
        hops_conn_id: str = RuntimeHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.delete = delete
        self.keep_days = keep_days
        self.keep_runs = keep_runs
        self.keep_versions = keep_versions
        self.unknown_runs = unknown_runs
        self.hops_conn_id = hops_conn_id
        self.check_arguments(CollectGarbageOperator)
        self.rule = RetentionRule(keep_days, keep_runs, keep_versions, unknown_runs)

    def execute(self, context: Context) -> dict[str, Any]:
        """Removes or lists unneeded artifacts, and returns their number and size."""
        ti = context["ti"]

        def is_active(dag_id: str, run_id: str) -> bool | None:
            if ti.get_dr_count(dag_id, run_ids=[run_id], states=["queued", "running"]):
                return True
            return False if ti.get_dr_count(dag_id, run_ids=[run_id]) else None

        def track(items: Iterable[Any], description: str, total: int) -> Iterator[Any]:
            self.log.info("%s: %d", description, total)
            for item in items:
                yield item
                if isinstance(item, Removal):
                    self.log.info("%s: %s (%s, %d bytes)", description, item.uri, item.kind, item.size_bytes)

        try:
            collection = garbage_collection(RuntimeHook(self.hops_conn_id), self.rule, is_active, track)
            plan = collection.remove() if self.delete else collection.plan()
            if not self.delete:
                list(track(plan.removals.values(), "Can be removed", len(plan.removals)))
        except HopsError as error:
            raise airflow_error(error) from error
        return {
            "deleted": self.delete,
            "removed": len(plan.removals),
            "removed_bytes": sum(removal.size_bytes for removal in plan.removals.values()),
            "kept": len(plan.kept),
            "kept_bytes": plan.size_bytes,
        }
