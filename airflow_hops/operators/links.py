"""Links from a task to TensorBoard and to the pages of the web UI."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode, urlsplit

from airflow.sdk import BaseOperatorLink

from airflow_hops.airflow_internals.tasks import conf, loop_iteration
from airflow_hops.core.artifacts.artifact import Producer
from airflow_hops.core.web import URL_PREFIX

_PAGES = "/plugin/hops"
_OF_ROWS = {"examples", "transformed_examples", "predictions"}
"""Kinds of artifacts whose rows the Data page shows."""
_OF_RECORDS = {"runs", "models"}
"""Pages without an artifact: runs are in MLflow, and a model has several artifacts."""

if TYPE_CHECKING:
    from airflow_hops.airflow_internals.tasks import RuntimeTaskInstanceProtocol, TaskInstanceKey


@dataclass(frozen=True)
class PageLink(BaseOperatorLink):
    """Link to a page of the plugin, opened with the artifact or the model of the task instance.

    Args:
        page: Name of the page, as in ``ui/src/routes.ts``, or ``tensorboard``, which the API server starts on demand.
    """

    page: str

    @property
    def name(self) -> str:
        """Text of the link."""
        return "TensorBoard" if self.page == "tensorboard" else self.page.capitalize()

    @property
    def xcom_key(self) -> str:
        """Key under which Airflow keeps the address."""
        return f"_link_{self.name}Link"

    def get_link(self, operator: Any, *, ti_key: TaskInstanceKey | RuntimeTaskInstanceProtocol) -> str:
        """Returns the page's address on the API server, including the path of its ``base_url``."""
        if self.page == "tensorboard":
            parts = [ti_key.dag_id, ti_key.run_id, ti_key.task_id, _instance(ti_key)]
            return f"{_base_path()}{URL_PREFIX}/tensorboard/" + "/".join(quote(part, safe="") for part in parts) + "/"
        kind, model_name = (getattr(operator, name, None) for name in ("output_kind", "model_name"))
        path, query = self.page, {"dag": ti_key.dag_id}
        if self.page == "models" and model_name:
            path += f"/{quote(model_name, safe='')}"
        if self.page == "data" and kind in _OF_ROWS:
            query["tab"] = "dive"
        if kind is not None and self.page not in _OF_RECORDS:
            query["artifact"] = "/".join([kind, ti_key.dag_id, ti_key.task_id, _instance(ti_key), ti_key.run_id])
        elif self.page == "lineage" and model_name:
            query["model"] = model_name
        return f"{_base_path()}{_PAGES}/{path}?{urlencode(query)}"


DATA_LINK = PageLink("data")
"""Link to the statistics by feature or, for examples, to the rows."""
SCHEMA_LINK = PageLink("schema")
"""Link to a schema, or to the anomalies of a validation."""
TENSORBOARD_LINK = PageLink("tensorboard")
"""Link to a training's TensorBoard."""
RUNS_LINK = PageLink("runs")
"""Link to the pipeline's training runs."""
MODELS_LINK = PageLink("models")
"""Link to the task's served model, or to all models of the pipeline."""
SKEW_LINK = PageLink("skew")
"""Link to a comparison, or to all comparisons of the pipeline."""
LINEAGE_LINK = PageLink("lineage")
"""Link to the lineage of the task's artifact, or of its model."""


def _base_path() -> str:
    return urlsplit(conf.get("api", "base_url", fallback="")).path.rstrip("/")


def _instance(ti_key: TaskInstanceKey | RuntimeTaskInstanceProtocol) -> str:
    context: Any = getattr(ti_key, "get_template_context", dict)()
    index = -1 if ti_key.map_index is None else ti_key.map_index
    return Producer(map_index=index, iteration=loop_iteration(context)).instance
