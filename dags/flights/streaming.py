"""Computes hourly delays of each carrier with Spark Structured Streaming, as rows for the feature store.

``spark-submit streaming.py kafka://flights --servers broker:9092 --out OUT --checkpoint CHECKPOINT`` takes the records
that are new since the checkpoint, and ends. Instead of a topic, it takes a folder with files of JSON lines.
"""

from __future__ import annotations

import argparse

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

FIELDS = "carrier_id LONG, delay DOUBLE, at TIMESTAMP"


def read_flights(spark: SparkSession, place: str, servers: str | None) -> DataFrame:
    """Returns the stream of a topic, ``kafka://…``, which needs Spark's Kafka package, or of a folder."""
    if not place.startswith("kafka://"):
        return spark.readStream.schema(FIELDS).json(place)
    options = {"kafka.bootstrap.servers": servers, "subscribe": place.removeprefix("kafka://")}
    records = spark.readStream.format("kafka").options(**options, startingOffsets="earliest").load()
    return records.select(f.from_json(f.col("value").cast("string"), FIELDS).alias("of")).select("of.*")


def hourly_delays(flights: DataFrame) -> DataFrame:
    """Returns a row for each carrier and hour, once no flight of it can come anymore.

    A row's time is the end of its hour, so that no training row from within the hour gets it.
    """
    return (
        flights.withWatermark("at", "2 hours")
        .groupBy(f.window("at", "1 hour"), "carrier_id")
        .agg(f.avg("delay").cast("float").alias("mean_delay"), f.count("*").alias("flights"))
        .select(
            "carrier_id",
            "mean_delay",
            "flights",
            f.col("window.end").alias("at"),
            f.current_timestamp().alias("created"),
        )
    )


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("place")
    parser.add_argument("--servers")
    parser.add_argument("--out", required=True, help="folder for the rows of this run")
    parser.add_argument("--checkpoint", required=True, help="folder for offsets and unfinished hours, of all runs")
    given = parser.parse_args()
    spark = SparkSession.builder.config("spark.sql.session.timeZone", "UTC").getOrCreate()

    def write(rows: DataFrame, batch: int) -> None:
        # A batch that a killed run has not finished is made again, and replaces what was written.
        rows.write.mode("overwrite").parquet(f"{given.out}/batch-{batch:09}")

    delays = hourly_delays(read_flights(spark, given.place, given.servers))
    query = delays.writeStream.foreachBatch(write).option("checkpointLocation", given.checkpoint)
    query.trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    main()
