"""Penguins as examples: the species, and what can be seen and measured."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

MEASURED = ("bill_length_mm", "bill_depth_mm", "flipper_length_mm", "body_mass_g")


def prepare(spark: SparkSession, tables: dict[str, DataFrame]) -> DataFrame:
    """One row for each penguin; two were not measured, and of eleven the sex is not known."""
    measured = [F.col(name).cast("double").alias(name) for name in MEASURED]
    return tables["penguins"].select("species", "island", "sex", *measured)
