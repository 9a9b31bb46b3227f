"""Statistics with slices, weights, lists and awkward numbers, and a comparison, for the page that shows them."""

from __future__ import annotations

from typing import Any

from airflow.sdk import DAG, task

from airflow_hops.operators import SkewOperator, StatisticsOperator


def write_awkward_examples(context, moved: bool) -> Any:
    """1,000 rows of one split; in those that have moved ``size`` is larger and ``word`` another."""
    import numpy as np
    import pandas as pd

    from airflow_hops.core.artifacts.artifact import RowCounts

    rows = 1000
    number = np.arange(rows)
    table = pd.DataFrame(
        {
            "size": number % 100 + (200.0 if moved else 0.0),
            "small": number % 4,
            "word": np.where(number % 10 == 0, "<b>rare</b>", "new" if moved else "usual"),
            "half": np.where(number % 2 == 0, np.nan, 1.5),
            "weight": np.where(number % 4 == 3, 3.0, 1.0),
            "one": ["same"] * rows,
            "code": [f"code-{each}" for each in number],
            "huge": np.where(number == 0, np.inf, number * 1.0),
            "list": [[1, 2, 3]] * rows,
        }
    )
    with context.output() as writer:
        (writer.path / "train").mkdir()
        table.to_parquet(writer.path / "train" / "part-00000.parquet")
        return writer.commit(rows={"train": RowCounts(rows, rows)}, properties={"label": "small"})


with DAG("pages_statistics", schedule=None):
    write = task.hops(write_awkward_examples, output_kind="examples")
    first, second = write.override(task_id="first")(False), write.override(task_id="second")(True)
    options = {"slice_by": ["word"], "weight_feature": "weight"}
    before = StatisticsOperator(task_id="before", examples=first, options=options)
    after = StatisticsOperator(task_id="after", examples=second)
    SkewOperator(task_id="compare", reference=before.output, current=after.output)
