"""The step of a kernel: inputs, store and connections, passed in its environment."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from airflow_hops.core.contract.artifacts import BadInput
from airflow_hops.core.contract.protocol import CONNECTIONS_VARIABLE, NOTEBOOK_VARIABLE, StepSpec
from airflow_hops.ml.step.context import StepContext, current_step, make_current

RESULT_MIME = "application/vnd.airflow-hops.result+json"
"""The output by which a cell leaves a value."""


def spec_variables(spec: StepSpec, file: Path) -> Mapping[str, str]:
    """Writes what is no secret of a step to a file; returns the variables with which a kernel finds all of it."""
    file.write_text(spec.to_json())
    return {NOTEBOOK_VARIABLE: str(file), **spec.variables()}


def begin() -> None:
    """Takes the step out of the environment, before any cell runs and can print it, or hand it to a child."""
    values = os.environ.pop(NOTEBOOK_VARIABLE, "")
    if values:
        spec = StepSpec.from_json(Path(values).read_text(), os.environ)
        sys.path[:] = dict.fromkeys([*sys.path, *spec.code_paths])
        make_current(StepContext(spec, Path(values).parent))
    os.environ.pop(CONNECTIONS_VARIABLE, None)


def current_context() -> StepContext:
    """The step that this notebook is, or that ``airflow hops notebook`` stands for.

    Raises:
        BadInput: this process is neither a kernel of theirs, nor a step.
    """
    context = current_step()
    if context is None:
        raise BadInput(
            "there is no store here: this is neither a notebook of NotebookOperator, nor one opened with "
            "'airflow hops notebook'"
        )
    return context
