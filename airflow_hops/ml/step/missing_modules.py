"""Advice for modules that user code imports and the environment lacks."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from airflow_hops.core.profiles import environment_name

_NEVER_ADDED = ("airflow", "airflow_hops")
"""Modules that steps already have or do not need."""


def advice_on_missing_module(text: str) -> str:
    """Returns advice about the missing module that an error's text names; empty if it names none."""
    # Not by the error's class, as the error may come from ranks, Spark's workers or the tracing of a graph.
    missing = re.search(r"No module named '([\w.]+)'", text)
    if missing is None or missing[1].partition(".")[0] in _NEVER_ADDED:
        return ""
    name = environment_name(Path(sys.prefix))
    where = f"--name {name}" if name else f"--path {sys.prefix}"
    return (
        f"Steps run in the runtime environment {sys.prefix}, where there is no module {missing[1]!r}: add its "
        f"package with 'airflow hops runtime install PACKAGE {where}' on every machine that runs steps; a module of "
        "your own lives beside the DAG file"
    )
