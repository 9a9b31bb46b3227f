"""Small pipelines whose artifacts the web API shows.

``pages`` and ``pages_other`` make rows with awkward names and values, their statistics and a schema; ``pages_refused``
refuses its model, and ``pages_performance`` measures it. Nobody runs the others: one watches the model that the other
deploys.
"""

from __future__ import annotations

from typing import Any

from airflow.sdk import DAG, Asset, task

from airflow_hops.operators import (
    DeployModelOperator,
    EvaluateOperator,
    HorovodTrainOperator,
    PerformanceOperator,
    RequestRetrainingOperator,
    SchemaOperator,
    SkewOperator,
    StatisticsOperator,
    ValidateExamplesOperator,
)


def write_examples(context, rows: int) -> Any:
    """Numbers, words, missing values, and names and values that are markup."""
    import numpy as np
    import pandas as pd

    from airflow_hops.core.artifacts.artifact import RowCounts

    random = np.random.default_rng(7)
    words = np.array(["a", "b", "<script>alert(1)</script>", "ü€𝄞"], object)
    table = pd.DataFrame(
        {
            "id": [f"row-{number}" for number in range(rows)],
            "label": random.integers(0, 2, rows),
            "size": random.normal(10, 2, rows),
            "large": random.integers(0, 2**40, rows),
            "maybe": np.where(random.random(rows) < 0.25, np.nan, random.random(rows)),
            "word": random.choice(words, rows, p=[0.5, 0.3, 0.1, 0.1]),
            "<img src=x onerror=alert(1)>": random.integers(0, 3, rows),
            "vector": [[1.0, 2.0]] * rows,
        }
    )
    with context.output() as writer:
        for split, part in {"train": table[: rows * 4 // 5], "eval": table[rows * 4 // 5 :]}.items():
            (writer.path / split).mkdir()
            part.to_parquet(writer.path / split / "part-00000.parquet", row_group_size=100)
        sizes = {"table": rows, "train": rows * 4 // 5, "eval": rows // 5}  # as the prepare stage counts them
        counts = {name: RowCounts(size, size) for name, size in sizes.items()}
        return writer.commit(rows=counts, properties={"label": "label", "key": "id", "splits": ["train", "eval"]})


with DAG("pages", schedule=None):
    examples = task.hops(write_examples, task_id="examples", output_kind="examples")(1000)
    statistics = StatisticsOperator(task_id="statistics", examples=examples)
    schema = SchemaOperator(task_id="schema", statistics=statistics.output)
    ValidateExamplesOperator(task_id="validate", statistics=statistics.output, schema=schema.output)

with DAG("pages_other", schedule=None):
    task.hops(write_examples, task_id="examples", output_kind="examples")(20)


def refuse(context) -> Any:
    """An evaluation that does not bless, with a champion that is told in its own way."""
    with context.output() as writer:
        (writer.path / "evaluation.json").write_text("{}")
        champion = {"version": "the first", "fingerprint": "c"}
        verdict = {"blessed": False, "reasons": ["eval: AUC 0.51, at least 0.6 is asked for"], "champion": champion}
        return writer.commit(properties=verdict)


with DAG("pages_refused", schedule=None):
    evaluation = task.hops(refuse, task_id="evaluate", output_kind="evaluation")()
    DeployModelOperator(task_id="deploy", model=None, evaluation=evaluation, model_name="pages_candidate")

with DAG("pages_training", schedule=[Asset("pages.drifted")]):
    train = HorovodTrainOperator(task_id="train", script="horovod_script.py")
    DeployModelOperator(task_id="deploy", model=train.output, model_name="pages_model", ungated="a test")

with DAG("pages_search", schedule=None):
    EvaluateOperator(task_id="evaluate", model=None, examples=None, model_name="pages_model")

with DAG("pages_monitoring", schedule=None):
    skew = SkewOperator(task_id="skew", model_name="pages_model")
    PerformanceOperator(task_id="performance", model_name="pages_model")
    RequestRetrainingOperator(task_id="request_retraining", skew=skew.output, asset=Asset("pages.drifted"))


def measure(context) -> Any:
    """Writes a measurement of the model."""
    import json

    whole = {"version": 1, "start": "2026-01-01T00:00:00+00:00", "end": "2026-01-08T00:00:00+00:00", "rows": 200}
    report = {
        "model_name": "pages_candidate", "problem": "binary", "metric": "auc", "label": "late",
        "as_of": whole["end"], "notes": ["<b>nobody</b> knows"], "periods": [{**whole, "labelled": 20}],
        "versions": [{**whole, "labelled": 150, "measured": 120, "figures": {"auc": [0.7, 0.6, 0.8]}}],
        "ages": [{"from_s": 0, "to_s": None, "rows": 200, "labelled": 150}], "labels": {"given": 150, "joined": 150},
    }  # fmt: skip
    with context.output() as writer:
        (writer.path / "performance.json").write_text(json.dumps(report))
        return writer.commit(properties={"model_name": "pages_candidate"})


with DAG("pages_performance", schedule=None):
    task.hops(measure, output_kind="performance")()
    PerformanceOperator(task_id="performance", model_name="pages_candidate")
