"""Examples as the peer has them: the flights whose arrival delay is known, with their nine raw features."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

LATE_MINUTES = 15


def prepare(spark: SparkSession, tables: dict[str, DataFrame]) -> DataFrame:
    """Derives label, weekday, key and time; rejects the flights that never arrived."""
    day = F.make_date(*(F.col(name).cast("int") for name in ("year", "month", "day")))
    key = F.concat_ws("-", day, "carrier", F.col("flight").cast("string"), "origin", F.col("sched_dep_time"))
    return tables["flights"].select(
        key.alias("flight_id"),
        (F.unix_timestamp(day) + F.col("hour") * 3600 + F.col("minute") * 60).alias("scheduled_at"),
        (F.col("arr_delay") >= LATE_MINUTES).cast("long").alias("late"),
        F.weekday(day).alias("weekday"),
        *("month", "day", "hour", "sched_dep_time", "distance", "carrier", "origin", "dest"),
        F.when(F.col("arr_delay").isNull(), "arrival delay is not known").alias("reject_reason"),
    )
