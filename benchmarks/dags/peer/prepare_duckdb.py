"""The same examples as those of ``prepare_spark``, in SQL."""

from __future__ import annotations

from collections.abc import Mapping

import duckdb


def prepare(
    connection: duckdb.DuckDBPyConnection, tables: Mapping[str, duckdb.DuckDBPyRelation]
) -> duckdb.DuckDBPyRelation:
    """Derives label, weekday, key and time; rejects the flights that never arrived."""
    return connection.sql("""
        SELECT
            concat_ws('-', departs, carrier, flight, origin, sched_dep_time) AS flight_id,
            (epoch(departs) + hour * 3600 + minute * 60)::BIGINT AS scheduled_at,
            (arr_delay >= 15)::BIGINT AS late,
            (isodow(departs) - 1)::INTEGER AS weekday,
            month, day, hour, sched_dep_time, distance, carrier, origin, dest,
            CASE WHEN arr_delay IS NULL THEN 'arrival delay is not known' END AS reject_reason
        FROM (SELECT *, make_date(year, month, day) AS departs FROM flights)
    """)
