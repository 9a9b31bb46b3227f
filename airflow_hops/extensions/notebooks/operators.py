"""Operator that runs a notebook."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_hops.extensions.notebooks.core import NotebookProperties
from airflow_hops.operators.base import HopsOperator, own_params
from airflow_hops.runner.arguments import Positive, is_late, rendered_mapping

if TYPE_CHECKING:
    from airflow.sdk import Context


class NotebookOperator(HopsOperator):
    """Executes a Jupyter notebook in the runtime environment, and stores it with its outputs.

    Text output appears in the task's log as it is written. The artifact ``notebook`` holds the executed
    ``notebook.ipynb`` and ``notebook.html``. It is also published if a cell fails, which fails the task. The task is
    never cached, since the data that a notebook reads is unknown. A value passed to
    :func:`airflow_hops.extensions.notebooks.hops.pipeline.result` becomes the task's XCom ``result``.

    Args:
        notebook: Path of the Python ``.ipynb``, relative to the DAG's folder. The kernel's working directory is the
            file's folder. (templated)
        params: Values for variables of the notebook, JSON values. They are set in a cell after the one tagged
            ``parameters``, which must assign each, or at the top if there is no such cell. They are Airflow params of
            the task: a DAG run's ``conf`` overrides their values. Templates are rendered in these values, but not in
            ``conf``.
        inputs: Upstream artifacts by role, which the notebook reads with
            :mod:`~airflow_hops.extensions.notebooks.hops.pipeline`. (templated)
        env: Environment variables of the kernel. (templated)
        cell_timeout_s: Seconds that each cell may take; None for no limit.
        **kwargs: As :class:`~airflow_hops.operators.base.HopsOperator`.
    """

    entry = "airflow_hops.extensions.notebooks.ml.stage:run"
    output_kind = "notebook"
    template_fields: Sequence[str] = (*HopsOperator.template_fields, "notebook", "values", "inputs", "env")
    cacheable = False

    def __init__(
        self,
        *,
        notebook: str,
        params: Mapping[str, Any] | None = None,
        inputs: Mapping[str, Any] | None = None,
        env: Mapping[str, str | float] | None = None,
        cell_timeout_s: Positive | None = None,
        **kwargs: Any,
    ) -> None:
        values = dict(params or {})
        super().__init__(params=values, **kwargs)
        self.notebook = notebook
        self.cell_timeout_s = cell_timeout_s
        self.check_arguments(NotebookOperator, params=params, inputs=inputs, env=env)
        self.inputs = inputs if is_late(inputs) else dict(inputs or {})
        self.env = env if is_late(env) else dict(env or {})
        self.values = {name: values[name] for name in own_params(params or {})}
        self._defaults = dict(self.values)

    def step_params(self, context: Context) -> dict[str, Any]:
        """Returns the notebook, its parameters and its environment."""
        # A DAG run's conf is not rendered: otherwise, whoever triggers a run could run templates on the worker.
        values = {name: context["params"][name] for name in self.values}
        return {
            "notebook": self.notebook,
            "params": {name: self.values[name] if v == self._defaults[name] else v for name, v in values.items()},
            "env": {name: str(value) for name, value in rendered_mapping("env", self.env).items()},
            "cell_timeout_s": self.cell_timeout_s,
        }

    def step_inputs(self) -> Mapping[str, Any]:
        """Returns the notebook's inputs."""
        return rendered_mapping("inputs", self.inputs)

    def execute(self, context: Context) -> Any:
        """Runs the notebook and pushes the value that it set as its result."""
        value = super().execute(context)
        result = NotebookProperties.from_dict(value["properties"]).result
        if result is not None:
            context["ti"].xcom_push(key="result", value=result)
        return value
