"""Links from a task to what its step has made for people to look at."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from airflow.configuration import conf
from airflow.sdk import BaseOperatorLink

from airflow_hops.api import URL_PREFIX

if TYPE_CHECKING:
    from airflow.sdk.types import RuntimeTaskInstanceProtocol, TaskInstanceKey


class TensorBoardLink(BaseOperatorLink):
    """TensorBoard of a training, which the API server starts when somebody looks."""

    name = "TensorBoard"

    def get_link(self, operator: Any, *, ti_key: TaskInstanceKey | RuntimeTaskInstanceProtocol) -> str:
        """The address on the API server, whatever path it is served under.

        Args:
            operator: The task.
            ti_key: What names the task instance: its key or, as Airflow gives it on a worker, itself.
        """
        base = urlsplit(conf.get("api", "base_url", fallback="")).path.rstrip("/")
        map_index = -1 if ti_key.map_index is None else ti_key.map_index
        parts = [ti_key.dag_id, ti_key.run_id, ti_key.task_id, str(map_index)]
        return f"{base}{URL_PREFIX}/tensorboard/" + "/".join(quote(part, safe="") for part in parts) + "/"
