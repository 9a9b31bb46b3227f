"""Makes the table ``shop.rows`` in Spark's catalogue: 1,000 rows, one an hour, partitioned by day."""

from pyspark.sql import SparkSession

spark = SparkSession.builder.enableHiveSupport().config("spark.sql.session.timeZone", "UTC").getOrCreate()
spark.sql("CREATE DATABASE shop")
spark.sql("SET hive.exec.dynamic.partition.mode=nonstrict")
spark.sql(
    "CREATE TABLE shop.rows (id BIGINT, price DECIMAL(10, 2), at TIMESTAMP, flag BOOLEAN) PARTITIONED BY (day DATE) "
    "STORED AS PARQUET"
)
spark.sql(
    "INSERT INTO shop.rows SELECT id, CAST(id / 4 AS DECIMAL(10, 2)), timestamp_seconds(1356998400 + id * 3600), "
    "IF(id % 3 = 0, NULL, id % 2 = 0), date_add(DATE'2013-01-01', CAST(floor(id / 24) AS INT)) FROM range(1000)"
)
