"""The visits' own code for Spark and TensorFlow."""

from __future__ import annotations

from typing import Any

NUMBERS = ("pages", "minutes")


def prepare(spark: Any, tables: dict[str, Any]) -> Any:
    """One row for each visit."""
    from pyspark.sql import functions as F

    numbers = [F.col(name).cast("double").alias(name) for name in NUMBERS]
    return tables["visits"].select("at", "bought", *numbers)


def preprocess(features: dict[str, Any], constants: Any) -> dict[str, Any]:
    """The numbers as they are."""
    return {name: features[name] for name in NUMBERS}
