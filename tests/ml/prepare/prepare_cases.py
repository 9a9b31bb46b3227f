"""User code of prepare for tests, good and bad: most of it in SQL, and what is special to Spark in PySpark."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F


def sql(query: str) -> Callable[..., Any]:
    return lambda connection, tables: connection.sql(query)


good = sql(
    "SELECT orders.*, age, CASE WHEN amount > 990 THEN 'too large / odd' END AS reject_reason "
    "FROM orders LEFT JOIN customers USING (customer)"
)
inner_join = sql("SELECT * FROM orders JOIN (FROM customers ORDER BY customer LIMIT 3) USING (customer)")
array_column = sql("SELECT *, string_split(text, ' ') AS words FROM orders")
timestamp_feature = sql("SELECT *, placed_at AS also_at FROM orders")
# An account of 19 digits, which one row lacks.
long_numbers = sql("SELECT *, CASE WHEN number != 7 THEN number + 1234567890123456789 END AS account FROM orders")
misspelt = sql("SELECT *\nFORM orders")
one_class = sql("SELECT * REPLACE (1 AS returned) FROM orders")
# Thirteen classes; one row of the fourteenth is rejected for another reason.
classes = sql(
    "SELECT * REPLACE (CASE WHEN number = 7 THEN 99 ELSE number % 13 END AS returned), "
    "CASE WHEN number = 7 THEN 'test order' END AS reject_reason FROM orders"
)
# Words for prices, and how far they are trusted; a few rows lack one or the other.
priced = sql(
    "SELECT order_id, placed_at, CASE WHEN number % 100 < 3 THEN 'dear' WHEN number % 100 = 3 THEN '' "
    "ELSE ['low', 'high', 'fair'][number % 3 + 1] END AS price, "
    "CASE number % 100 WHEN 5 THEN 'nan'::DOUBLE WHEN 6 THEN -1.0 WHEN 7 THEN 'inf'::DOUBLE "
    "ELSE number % 7 + 0.5 END AS trust, number FROM orders"
)
# Rows without key and time; each stands twice, with one label and the other.
plain = sql("SELECT number % 2 AS returned, number // 2 % 10 AS customer, number // 2 AS number FROM orders")
plain_in_another_order = sql(
    "SELECT number % 2 AS returned, number // 2 % 10 AS customer, number // 2 AS number FROM orders "
    "ORDER BY orders.number DESC"
)
# No time; the first hundred orders have the id of another one.
keyed = sql(
    "SELECT * EXCLUDE (placed_at) REPLACE (CASE WHEN number < 100 THEN 'o' || (number + 100) ELSE order_id END "
    "AS order_id) FROM orders"
)
timed = sql("SELECT * EXCLUDE (order_id) FROM orders")
milliseconds = sql("SELECT * REPLACE (epoch_ms(placed_at) AS placed_at) FROM orders")
# Order 7 comes from the year 3000, or has milliseconds, and is rejected.
one_from_the_future = sql(
    "SELECT * EXCLUDE (order_id) REPLACE (CASE number WHEN 7 THEN 32503680000 WHEN 8 THEN epoch_ms(placed_at) "
    "ELSE epoch(placed_at) END AS placed_at), CASE WHEN number IN (7, 8) THEN 'no clock' END AS reject_reason "
    "FROM orders"
)
no_features = sql("SELECT order_id, placed_at, returned FROM orders")
all_rejected = sql("SELECT *, 'closed' AS reject_reason FROM orders")
# Every twentieth row lacks something, or has no number for a label; every fiftieth key stands twice.
untidy = sql(
    "SELECT CASE WHEN number % 20 != 0 THEN number // 50 * 50 + greatest(number % 50, 1) END AS order_id, "
    "CASE WHEN number % 20 != 2 THEN placed_at AT TIME ZONE 'UTC' END AS placed_at, "
    "CASE number % 20 WHEN 3 THEN 'nan'::DOUBLE WHEN 4 THEN NULL ELSE returned END AS returned, "
    "CASE number % 20 WHEN 5 THEN 'asked' END AS reject_reason, "
    "CASE WHEN number % 20 != 6 THEN number::INTEGER END AS maybe_integer, "
    "CASE WHEN number % 2 = 0 THEN 'nan'::FLOAT ELSE 1::FLOAT END AS not_a_number, "
    "amount::DECIMAL(10, 2) AS price, amount > 500 AS is_large, number, text FROM orders"
)


def missing_column(spark: SparkSession, tables: dict[str, DataFrame]) -> DataFrame:
    return tables["orders"].select("price")


def raising_in_executor(spark: SparkSession, tables: dict[str, DataFrame]) -> DataFrame:
    def broken(amount: float) -> float:
        raise KeyError("rate of the day")

    return tables["orders"].withColumn("amount", F.udf(broken, "double")("amount"))


def twice(spark: SparkSession, tables: dict[str, DataFrame]) -> DataFrame:
    customers = tables["customers"]
    return tables["orders"].join(customers, tables["orders"]["customer"] == customers["customer"], "left")


def orders(spark: SparkSession, tables: dict[str, DataFrame]) -> DataFrame:
    return tables["orders"]
