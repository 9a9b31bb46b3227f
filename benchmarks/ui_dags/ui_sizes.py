"""Large pages: statistics of thousands of features, and more rows than Dive draws."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from airflow.sdk import DAG, task

from airflow_hops.operators import StatisticsOperator

REPOSITORY = str(Path(__file__).resolve().parent.parent.parent)


def make_statistics(context, features: int, repository: str) -> Any:
    """Statistics of two splits."""
    import sys

    # A step's code is this package and the DAG folder.
    sys.path.append(repository)
    from benchmarks.measurement.ui_statistics import fill_statistics

    with context.output() as writer:
        return fill_statistics(writer, features)


def make_rows(context, rows: int) -> Any:
    """Numbers that depend on each other, words, and a label."""
    import numpy as np
    import pandas as pd

    from airflow_hops.core.artifacts.artifact import RowCounts

    random = np.random.default_rng(11)
    x, word = random.normal(0, 1, rows), random.integers(0, 12, rows)
    columns = {f"number_{number}": x * number + random.normal(0, 3, rows) for number in range(10)}
    words = {"word": [f"word {each}" for each in word], "place": [f"place {each % 4}" for each in word]}
    label = (x + random.normal(0, 1, rows) > 0.5).astype("int64")
    with context.output() as writer:
        (writer.path / "train").mkdir()
        pd.DataFrame({**columns, **words, "label": label}).to_parquet(writer.path / "train" / "part-00000.parquet")
        return writer.commit(
            rows={"train": RowCounts(rows, rows)},
            properties={"splits": ["train"], "label": "label", "key": None, "time": None, "window": None},
        )


with DAG("ui_sizes", schedule=None, doc_md=__doc__):
    statistics = task.hops(make_statistics, output_kind="statistics")
    for features in (1000, 5000):
        statistics.override(task_id=f"features_{features}")(features, REPOSITORY)
    rows = task.hops(make_rows, output_kind="examples").override(task_id="rows")(80_000)
    StatisticsOperator(task_id="sampled", examples=rows)
