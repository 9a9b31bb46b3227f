"""The customers' own code."""

from __future__ import annotations

from typing import Any

from airflow_hops import TrainContext


def prepare(connection: Any, tables: Any) -> Any:
    """One row for each customer; those to score have no label."""
    return connection.sql("SELECT * REPLACE (spent::DOUBLE AS spent) FROM customers")


def train(context: TrainContext) -> Any:
    from sklearn.linear_model import LogisticRegression

    rows = context.table("train", columns=["spent"])
    return LogisticRegression().fit(rows.frame(), rows.labels)
