"""A pipeline that asks a person when its data has changed, for the web pages; names and values are awkward."""

from __future__ import annotations

from typing import Any

from airflow.sdk import DAG, task

from airflow_hops.operators import SchemaOperator, StatisticsOperator, ValidateExamplesOperator


def write_examples(context, changed: str) -> Any:
    """Rows that fit together; or, in their second half, words, numbers and a column that were never seen."""
    import numpy as np
    import pandas as pd

    from airflow_hops.core.artifacts.artifact import RowCounts

    rows = 800
    random = np.random.default_rng(3)
    half = np.arange(rows) % 2 == 1
    table = pd.DataFrame(
        {
            "id": [f"row-{number}" for number in range(rows)],
            "label": random.integers(0, 2, rows),
            "size": random.normal(10, 2, rows).round(3),
            "maybe": np.where(random.random(rows) < 0.2, np.nan, 1.0),
            "<img src=x onerror=alert(1)>": random.choice(["a", "b", "<b>bold</b>"], rows),
        }
    )
    if changed:
        column = "<img src=x onerror=alert(1)>"
        table.loc[half, column] = random.choice(["<script>alert(2)</script>", f"new: {changed}, a comma"], rows // 2)
        table.loc[half, "maybe"] = np.nan
        table["ünseen"] = "€"
    with context.output() as writer:
        for split, part in {"train": table[: rows * 3 // 4], "eval": table[rows * 3 // 4 :]}.items():
            (writer.path / split).mkdir()
            part.to_parquet(writer.path / split / "part-00000.parquet")
        counts = {"train": RowCounts(rows * 3 // 4, rows * 3 // 4), "eval": RowCounts(rows // 4, rows // 4)}
        return writer.commit(rows=counts, properties={"label": "label", "key": "id"})


with DAG("pages_schema", schedule=None):
    examples = task.hops(write_examples, task_id="examples", output_kind="examples")(
        "{{ dag_run.conf.get('changed', '') }}"
    )
    statistics = StatisticsOperator(task_id="statistics", examples=examples)
    schema = SchemaOperator(task_id="schema", statistics=statistics.output, name="rows")
    validate = ValidateExamplesOperator(
        task_id="validate",
        statistics=statistics.output,
        schema=schema.output,
        examples=examples,
        split_anomalous=True,
        on_anomaly="ask",
    )
    ValidateExamplesOperator(
        task_id="after", statistics=statistics.output, schema=validate.output["schema"], on_anomaly="warn"
    )
