"""Pipelines of many features: their schema, a comparison a week, a validation; and models, which are never deployed.

``ui_wide`` has 5,000 features. ``ui_many`` has 1,000, and 199 pipelines beside it, each with a model; or as many as
``UI_MODELS`` says.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, task

from airflow_hops.operators import DeployModelOperator, SchemaOperator, SkewOperator, ValidateExamplesOperator

REPOSITORY = str(Path(__file__).resolve().parent.parent.parent)
FEATURES = {"ui_wide": 5000, "ui_many": 1000}
MODELS = int(os.environ.get("UI_MODELS", "200"))
NONE = {"uri": "", "kind": "model", "fingerprint": ""}
"""Stands for a model; nothing deploys it."""
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


statistics = task.hops(make_statistics, output_kind="statistics")
for dag_id, features in FEATURES.items():
    with DAG(dag_id, schedule=None, doc_md=__doc__):
        learnt = statistics.override(task_id="learnt")(features, REPOSITORY)
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
        if dag_id == "ui_many":
            wider = statistics.override(task_id="wider")(features + 100, REPOSITORY)
            validate = ValidateExamplesOperator(
                task_id="validate", statistics=wider, schema=schema.output, on_anomaly="warn"
            )
            never = task.short_circuit(lambda: False, task_id="never")()
            (
                validate
                >> never
                >> DeployModelOperator(task_id="deploy", model=NONE, model_name="many_000", ungated="it never runs")
            )

for number in range(1, MODELS):
    with DAG(f"ui_many_{number:03}", schedule=None, is_paused_upon_creation=True) as dag:
        DeployModelOperator(
            task_id="deploy",
            model=NONE,
            model_name=f"many_{number:03}",
            ungated="it never runs",
        )
    globals()[dag.dag_id] = dag
