"""Airflow's own share of a run in which everything is cached: as many tasks in a row, which do no work of their own.

``bare`` tasks have nothing besides; the others have what Airflow keeps for each task of a pipeline: the outputs of the
tasks before as inputs, an output of the size of an artifact's, an asset, and two links.
"""

from __future__ import annotations

from typing import Any

from airflow.sdk import DAG, Asset, BaseOperator, BaseOperatorLink, chain

_NAMES = ("ingest", "prepare", "statistics", "schema", "validate", "transform", "train", "evaluate", "deploy")
_OUTPUT = {"uri": "file:///nowhere", "properties": {f"feature_{number}": "float64" for number in range(40)}}


class BareOperator(BaseOperator):
    """Does nothing, in a task's process: Airflow's own EmptyOperator has none."""

    def execute(self, context: Any) -> Any:
        """Returns at once."""


class FirstLink(BaseOperatorLink):
    """A link to a page."""

    name = "First"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """The address of the page."""
        return f"/plugin/first?task={ti_key.task_id}"


class SecondLink(FirstLink):
    """Another."""

    name = "Second"


class PassingOperator(BareOperator):
    """Passes an output on."""

    template_fields = ("inputs",)
    operator_extra_links = (FirstLink(), SecondLink())

    def __init__(self, *, inputs: Any = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.inputs = inputs

    def execute(self, context: Any) -> Any:
        """Returns at once."""
        return _OUTPUT


with DAG("airflow_alone_bare", schedule=None, max_active_runs=1, doc_md=__doc__):
    chain(*(BareOperator(task_id=name) for name in _NAMES))

with DAG("airflow_alone", schedule=None, max_active_runs=1, doc_md=__doc__):
    before: list[PassingOperator] = []
    for name in _NAMES:
        outlets = [Asset(f"airflow_alone.{name}")]
        # Two of the outputs before, as the steps of the pipeline on average.
        before.append(PassingOperator(task_id=name, inputs=[task.output for task in before[-2:]], outlets=outlets))
    chain(*before)
