"""Links from a task to what its step has made for people to look at: TensorBoard, and the pages of the web UI."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import quote, urlencode, urlsplit

from airflow.configuration import conf
from airflow.sdk import BaseOperatorLink

from airflow_hops.core.contract.web import URL_PREFIX

_PAGES = "/plugin/hops"
_OF_ROWS = {"examples", "transformed_examples", "predictions"}
"""Kinds of artifacts whose rows the page Data shows."""

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
        parts = [ti_key.dag_id, ti_key.run_id, ti_key.task_id, _map_index(ti_key)]
        return f"{_base_path()}{URL_PREFIX}/tensorboard/" + "/".join(quote(part, safe="") for part in parts) + "/"


class PageLink(BaseOperatorLink):
    """A link to a page of the plugin, opened with the artifact of the task instance.

    The addresses are those of ``ui/src/routes.ts``.
    """

    page: ClassVar[str]
    of_artifact: ClassVar[bool] = True
    """Whether the page shows one artifact; runs are MLflow's, and a model is several artifacts."""

    def get_link(self, operator: Any, *, ti_key: TaskInstanceKey | RuntimeTaskInstanceProtocol) -> str:
        """The address of the page, as :meth:`TensorBoardLink.get_link`."""
        query = {"dag": ti_key.dag_id, **self.query(operator, ti_key)}
        return f"{_base_path()}{_PAGES}/{self.page}{self.below(operator)}?{urlencode(query)}"

    def below(self, operator: Any) -> str:
        """Returns the part of the path behind the page."""
        return ""

    def query(self, operator: Any, ti_key: TaskInstanceKey | RuntimeTaskInstanceProtocol) -> dict[str, str]:
        """Returns the query that selects the artifact, if the task makes one."""
        kind = getattr(operator, "output_kind", None)
        if kind is None or not self.of_artifact:
            return {}
        return {"artifact": "/".join([kind, ti_key.dag_id, ti_key.task_id, _map_index(ti_key), ti_key.run_id])}


class DataLink(PageLink):
    """Statistics, feature by feature; of examples, the rows."""

    name = "Data"
    page = "data"

    def query(self, operator: Any, ti_key: TaskInstanceKey | RuntimeTaskInstanceProtocol) -> dict[str, str]:
        """The artifact, and the tab that shows it."""
        tab = {"tab": "dive"} if operator.output_kind in _OF_ROWS else {}
        return {**tab, **super().query(operator, ti_key)}


class SchemaLink(PageLink):
    """A schema, or the anomalies of a validation."""

    name = "Schema"
    page = "schema"


class RunsLink(PageLink):
    """The pipeline's training runs."""

    name = "Runs"
    page = "runs"

    of_artifact = False


class ModelsLink(PageLink):
    """The served model that the task works on, or all of the pipeline's where it does not name one."""

    name = "Models"
    page = "models"
    of_artifact = False

    def below(self, operator: Any) -> str:
        """The model."""
        model_name = getattr(operator, "model_name", None)
        return f"/{quote(model_name, safe='')}" if model_name else ""


class SkewLink(PageLink):
    """A comparison, or all of the pipeline's."""

    name = "Skew"
    page = "skew"


class LineageLink(PageLink):
    """Link to the lineage of the task's artifact, or of its model."""

    name = "Lineage"
    page = "lineage"

    def query(self, operator: Any, ti_key: TaskInstanceKey | RuntimeTaskInstanceProtocol) -> dict[str, str]:
        """The artifact, or the model of a task that makes none."""
        model_name = getattr(operator, "model_name", None)
        return super().query(operator, ti_key) or ({"model": model_name} if model_name else {})


def _base_path() -> str:
    return urlsplit(conf.get("api", "base_url", fallback="")).path.rstrip("/")


def _map_index(ti_key: TaskInstanceKey | RuntimeTaskInstanceProtocol) -> str:
    return str(-1 if ti_key.map_index is None else ti_key.map_index)
