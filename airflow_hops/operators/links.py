"""Links from a task to TensorBoard and to the pages of the web UI."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import quote, urlencode, urlsplit

from airflow.sdk import BaseOperatorLink

from airflow_hops.airflow_internals.tasks import conf, loop_iteration
from airflow_hops.core.artifacts.artifact import Producer
from airflow_hops.core.web import URL_PREFIX

_PAGES = "/plugin/hops"
_OF_ROWS = {"examples", "transformed_examples", "predictions"}
"""Kinds of artifacts whose rows the Data page shows."""

if TYPE_CHECKING:
    from airflow_hops.airflow_internals.tasks import RuntimeTaskInstanceProtocol, TaskInstanceKey


class TensorBoardLink(BaseOperatorLink):
    """Link to a training's TensorBoard, which the API server starts on demand."""

    name = "TensorBoard"

    def get_link(self, operator: Any, *, ti_key: TaskInstanceKey | RuntimeTaskInstanceProtocol) -> str:
        """Returns the address on the API server, including the path of its ``base_url``."""
        parts = [ti_key.dag_id, ti_key.run_id, ti_key.task_id, _instance(ti_key)]
        return f"{_base_path()}{URL_PREFIX}/tensorboard/" + "/".join(quote(part, safe="") for part in parts) + "/"


class PageLink(BaseOperatorLink):
    """Link to a page of the plugin, opened with the artifact of the task instance.

    The addresses match ``ui/src/routes.ts``.
    """

    page: ClassVar[str]
    of_artifact: ClassVar[bool] = True
    """Whether the page shows a single artifact; runs are in MLflow, and a model has several artifacts."""

    def get_link(self, operator: Any, *, ti_key: TaskInstanceKey | RuntimeTaskInstanceProtocol) -> str:
        """Returns the page's address; see :meth:`TensorBoardLink.get_link`."""
        query = {"dag": ti_key.dag_id, **self.query(operator, ti_key)}
        return f"{_base_path()}{_PAGES}/{self.page}{self.below(operator)}?{urlencode(query)}"

    def below(self, operator: Any) -> str:
        """Returns the part of the path after the page's name."""
        return ""

    def query(self, operator: Any, ti_key: TaskInstanceKey | RuntimeTaskInstanceProtocol) -> dict[str, str]:
        """Returns the query that selects the task's artifact, if it makes one."""
        kind = getattr(operator, "output_kind", None)
        if kind is None or not self.of_artifact:
            return {}
        return {"artifact": "/".join([kind, ti_key.dag_id, ti_key.task_id, _instance(ti_key), ti_key.run_id])}


class DataLink(PageLink):
    """Link to the statistics by feature or, for examples, to the rows."""

    name = "Data"
    page = "data"

    def query(self, operator: Any, ti_key: TaskInstanceKey | RuntimeTaskInstanceProtocol) -> dict[str, str]:
        """Selects the artifact and the tab that shows it."""
        tab = {"tab": "dive"} if operator.output_kind in _OF_ROWS else {}
        return {**tab, **super().query(operator, ti_key)}


class SchemaLink(PageLink):
    """Link to a schema, or to the anomalies of a validation."""

    name = "Schema"
    page = "schema"


class RunsLink(PageLink):
    """Link to the pipeline's training runs."""

    name = "Runs"
    page = "runs"

    of_artifact = False


class ModelsLink(PageLink):
    """Link to the task's served model, or to all models of the pipeline."""

    name = "Models"
    page = "models"
    of_artifact = False

    def below(self, operator: Any) -> str:
        """Returns the model's path."""
        model_name = getattr(operator, "model_name", None)
        return f"/{quote(model_name, safe='')}" if model_name else ""


class SkewLink(PageLink):
    """Link to a comparison, or to all comparisons of the pipeline."""

    name = "Skew"
    page = "skew"


class LineageLink(PageLink):
    """Link to the lineage of the task's artifact, or of its model."""

    name = "Lineage"
    page = "lineage"

    def query(self, operator: Any, ti_key: TaskInstanceKey | RuntimeTaskInstanceProtocol) -> dict[str, str]:
        """Selects the artifact, or the model if the task makes no artifact."""
        model_name = getattr(operator, "model_name", None)
        return super().query(operator, ti_key) or ({"model": model_name} if model_name else {})


def _base_path() -> str:
    return urlsplit(conf.get("api", "base_url", fallback="")).path.rstrip("/")


def _instance(ti_key: TaskInstanceKey | RuntimeTaskInstanceProtocol) -> str:
    context: Any = getattr(ti_key, "get_template_context", dict)()
    index = -1 if ti_key.map_index is None else ti_key.map_index
    return Producer(map_index=index, iteration=loop_iteration(context)).instance
