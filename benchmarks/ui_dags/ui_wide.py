"""A season of 5,000 features: their schema, and a comparison a week."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from airflow.sdk import DAG, task

from airflow_hops.operators.schema import SchemaOperator
from airflow_hops.operators.skew import SkewOperator

REPOSITORY = str(Path(__file__).resolve().parent.parent.parent)
FEATURES = 5000
WEEKS = 30
"""As many comparisons as the Skew page shows at first."""


def make_statistics(context, features: int, repository: str) -> Any:
    """Statistics of two splits."""
    import sys

    # A step's code is this package and the DAG folder.
    sys.path.append(repository)
    from benchmarks.measurement.ui_statistics import fill_statistics

    with context.output() as writer:
        return fill_statistics(writer, features)


def make_week(context, learnt, number: int, repository: str) -> Any:
    """Statistics of a week."""
    import sys

    sys.path.append(repository)
    from benchmarks.measurement.ui_statistics import fill_window

    with context.output() as writer:
        return fill_window(writer, context.local("learnt"), number)


with DAG("ui_wide", schedule=None, doc_md=__doc__):
    learnt = task.hops(make_statistics, output_kind="statistics").override(task_id="learnt")(FEATURES, REPOSITORY)
    schema = SchemaOperator(task_id="schema", statistics=learnt)
    weeks = (
        task.hops(make_week, output_kind="statistics")
        .override(task_id="weeks")
        .partial(learnt=learnt, repository=REPOSITORY)
        .expand(number=list(range(WEEKS)))
    )
    SkewOperator.partial(task_id="skew", reference=learnt, schema=schema.output, alpha=None, min_rows=500).expand(
        current=weeks
    )
