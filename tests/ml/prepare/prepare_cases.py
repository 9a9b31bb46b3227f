"""User code of prepare for tests, good and bad."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F


def good(spark: SparkSession, tables: dict[str, DataFrame]) -> DataFrame:
    orders = tables["orders"].join(tables["customers"], "customer", "left")
    return orders.withColumn("reject_reason", F.when(F.col("amount") > 990, F.lit("too large / odd")))


def raising(spark: SparkSession, tables: dict[str, DataFrame]) -> DataFrame:
    raise ZeroDivisionError("no orders per day")


def missing_table(spark: SparkSession, tables: dict[str, DataFrame]) -> DataFrame:
    return tables["invoices"]


def missing_column(spark: SparkSession, tables: dict[str, DataFrame]) -> DataFrame:
    return tables["orders"].select("price")


def raising_in_executor(spark: SparkSession, tables: dict[str, DataFrame]) -> DataFrame:
    def broken(amount: float) -> float:
        raise KeyError("rate of the day")

    return tables["orders"].withColumn("amount", F.udf(broken, "double")("amount"))


def no_frame(spark: SparkSession, tables: dict[str, DataFrame]) -> Any:
    return 7


def array_column(spark: SparkSession, tables: dict[str, DataFrame]) -> DataFrame:
    return tables["orders"].withColumn("words", F.split("text", " "))


def timestamp_feature(spark: SparkSession, tables: dict[str, DataFrame]) -> DataFrame:
    return tables["orders"].withColumn("also_at", F.col("placed_at"))


def twice(spark: SparkSession, tables: dict[str, DataFrame]) -> DataFrame:
    customers = tables["customers"]
    return tables["orders"].join(customers, tables["orders"]["customer"] == customers["customer"], "left")


def duplicating_join(spark: SparkSession, tables: dict[str, DataFrame]) -> DataFrame:
    return tables["orders"].join(tables["visits"], "customer", "left")


def inner_join(spark: SparkSession, tables: dict[str, DataFrame]) -> DataFrame:
    return tables["orders"].join(tables["customers"].limit(3), "customer")


def long_numbers(spark: SparkSession, tables: dict[str, DataFrame]) -> DataFrame:
    """An account of 19 digits, which one row lacks."""
    number = F.col("number")
    return tables["orders"].withColumn("account", F.when(number != 7, number + 1234567890123456789))


def one_class(spark: SparkSession, tables: dict[str, DataFrame]) -> DataFrame:
    return tables["orders"].withColumn("returned", F.lit(1))


def classes(spark: SparkSession, tables: dict[str, DataFrame]) -> DataFrame:
    """Thirteen classes; one row of the fourteenth is rejected for another reason."""
    number = F.col("number")
    return (
        tables["orders"]
        .withColumn("returned", F.when(number == 7, 99).otherwise(number % 13))
        .withColumn("reject_reason", F.when(number == 7, "test order"))
    )


def priced(spark: SparkSession, tables: dict[str, DataFrame]) -> DataFrame:
    """Words for prices, and how far they are trusted; a few rows lack one or the other."""
    number = F.col("number")
    names = F.array(*map(F.lit, ("low", "high", "fair")))
    price = F.when(number % 100 < 3, "dear").when(number % 100 == 3, F.lit("")).otherwise(names[number % 3])
    odd = F.when(number % 100 == 5, float("nan")).when(number % 100 == 6, -1.0).when(number % 100 == 7, float("inf"))
    return tables["orders"].select(
        "order_id", "placed_at", price.alias("price"), odd.otherwise(number % 7 + 0.5).alias("trust"), "number"
    )


def plain(spark: SparkSession, tables: dict[str, DataFrame]) -> DataFrame:
    """Rows without key and time; each stands twice, with one label and the other."""
    number = F.col("number")
    half = F.floor(number / 2)
    return tables["orders"].select((number % 2).alias("returned"), (half % 10).alias("customer"), half.alias("number"))


def plain_in_another_order(spark: SparkSession, tables: dict[str, DataFrame]) -> DataFrame:
    return plain(spark, tables).repartition(7).orderBy(F.col("number").desc())


def keyed(spark: SparkSession, tables: dict[str, DataFrame]) -> DataFrame:
    """No time; the first hundred orders have the id of another one."""
    number = F.col("number")
    of_another = F.concat(F.lit("o"), number + 100)
    return (
        tables["orders"]
        .drop("placed_at")
        .withColumn("order_id", F.when(number < 100, of_another).otherwise(F.col("order_id")))
    )


def timed(spark: SparkSession, tables: dict[str, DataFrame]) -> DataFrame:
    return tables["orders"].drop("order_id")


def no_features(spark: SparkSession, tables: dict[str, DataFrame]) -> DataFrame:
    return tables["orders"].select("order_id", "placed_at", "returned")


def all_rejected(spark: SparkSession, tables: dict[str, DataFrame]) -> DataFrame:
    return tables["orders"].withColumn("reject_reason", F.lit("closed"))


def untidy(spark: SparkSession, tables: dict[str, DataFrame]) -> DataFrame:
    """Every twentieth row lacks something, or has no number for a label; every fiftieth key stands twice."""
    number = F.col("number")
    return tables["orders"].select(
        F.when(number % 20 != 0, F.floor(number / 50) * 50 + F.greatest(number % 50, F.lit(1))).alias("order_id"),
        F.when(number % 20 != 2, F.col("placed_at").cast("timestamp_ntz")).alias("placed_at"),
        F.when(number % 20 == 3, float("nan")).when(number % 20 != 4, F.col("returned")).alias("returned"),
        F.when(number % 20 == 5, F.lit("asked")).alias("reject_reason"),
        F.when(number % 20 != 6, number.cast("int")).alias("maybe_integer"),
        F.when(number % 2 == 0, float("nan")).otherwise(1.0).cast("float").alias("not_a_number"),
        F.col("amount").cast("decimal(10,2)").alias("price"),
        (F.col("amount") > 500).alias("is_large"),
        "number",
        "text",
    )
