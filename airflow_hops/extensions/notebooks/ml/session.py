"""Passes a step (inputs, store and connections) to a kernel through its environment."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from airflow_hops.core.errors import BadInput
from airflow_hops.core.steps.protocol import CONNECTIONS_VARIABLE, NOTEBOOK_VARIABLE, StepSpec
from airflow_hops.ml.step.context import StepContext, current_step, make_current

RESULT_MIME = "application/vnd.airflow-hops.result+json"
"""MIME type of the output that sets a cell's result."""


def spec_variables(spec: StepSpec, file: Path) -> Mapping[str, str]:
    """Writes a step without its secrets to a file; returns the variables from which a kernel restores the step."""
    file.write_text(spec.to_json())
    return {NOTEBOOK_VARIABLE: str(file), **spec.variables()}


def begin() -> None:
    """Removes the step from the environment, before a cell can print it or pass it to a child process."""
    values = os.environ.pop(NOTEBOOK_VARIABLE, "")
    if values:
        spec = StepSpec.from_json(Path(values).read_text(), os.environ)
        sys.path[:] = dict.fromkeys([*sys.path, *spec.code_paths])
        make_current(StepContext(spec, Path(values).parent))
    os.environ.pop(CONNECTIONS_VARIABLE, None)


def current_context() -> StepContext:
    """Returns the step of this notebook, or of ``airflow hops notebook``.

    Raises:
        BadInput: this process is neither such a kernel nor a step.
    """
    context = current_step()
    if context is None:
        raise BadInput(
            "there is no store here: this is neither a notebook of NotebookOperator, nor one opened with "
            "'airflow hops notebook'"
        )
    return context
