"""Makes tables in Spark's catalogue: ``shop.rows``, 1,000 rows, one an hour, partitioned by day, and ``shop.odd``."""

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
spark.sql(
    "CREATE TABLE shop.odd USING parquet AS SELECT CAST(id AS INT) AS a, id * 2 AS `a.b`, 'ü' AS `Ti``ck ü%`, "
    "CAST(1356998400 + id * 86400 AS INT) AS `select`, map('k', id) AS count, make_ym_interval(1) AS span FROM range(9)"
)
