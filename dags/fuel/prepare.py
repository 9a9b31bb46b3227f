"""Cars as examples: miles per gallon, and what the maker knows of the car."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

NUMBERS = ("Cylinders", "Displacement", "Horsepower", "Weight_in_lbs", "Acceleration")


def prepare(spark: SparkSession, tables: dict[str, DataFrame]) -> DataFrame:
    """One row for each car. The year is no feature: a model has to serve years that it was not trained on."""
    return tables["cars"].select(
        F.col("Year").cast("timestamp").alias("built_at"),
        F.col("Miles_per_Gallon").cast("double").alias("miles_per_gallon"),
        F.col("Origin").alias("origin"),
        *(F.col(name).cast("double").alias(name.lower()) for name in NUMBERS),
    )
