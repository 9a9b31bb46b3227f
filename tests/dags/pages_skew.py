"""A pipeline that compares a window, made as its run is configured, with the statistics of another pipeline."""

from __future__ import annotations

from typing import Any

from airflow.sdk import DAG, Asset, task

from airflow_hops.operators import RequestRetrainingOperator, SkewOperator, StatisticsOperator


def write_window(context, window: dict[str, Any]) -> Any:
    """Rows as those of the DAG ``pages``; ``shift`` moves a number, ``words`` replace its words."""
    import numpy as np
    import pandas as pd

    from airflow_hops.core.artifacts.artifact import RowCounts

    rows, random = window.get("rows", 1200), np.random.default_rng(window.get("seed", 1))
    words = np.array(["a", "b", "<script>alert(1)</script>", "ü€𝄞"], object)
    table = pd.DataFrame(
        {
            "id": [f"row-{number}" for number in range(rows)],
            "label": random.integers(0, 2, rows),
            "size": random.normal(10 + window.get("shift", 0), 2, rows),
            "word": random.choice(window.get("words") or words, rows, p=[0.5, 0.3, 0.1, 0.1]),
            "<img src=x onerror=alert(1)>": random.integers(0, 3, rows),
        }
    )
    with context.output() as writer:
        (writer.path / "train").mkdir()
        table.to_parquet(writer.path / "train" / "part-00000.parquet")
        return writer.commit(
            rows={"train": RowCounts(rows, rows)},
            properties={"label": "label", "key": "id", "window": window["window"]},
        )


with DAG("pages_skew", schedule=None, render_template_as_native_obj=True):
    examples = task.hops(write_window, task_id="examples", output_kind="examples")("{{ dag_run.conf['window'] }}")
    statistics = StatisticsOperator(task_id="statistics", examples=examples)
    drift = SkewOperator(
        task_id="drift", reference="{{ dag_run.conf['reference'] }}", current=statistics.output, min_rows=500
    )
    RequestRetrainingOperator(task_id="request", skew=drift.output, asset=Asset("pages.skewed"), on_request=id)
