"""Examples of the flights pipeline made with pandas: what `prepare` writes, for tests of the stages after it."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from airflow_hops.core.artifacts.artifact import Artifact, Producer, RowCounts
from airflow_hops.core.store import ArtifactStore

PROPERTIES = {"label": "late", "key": "flight_id", "time": "scheduled_at"}
FEATURES = [
    "carrier", "origin", "dest", "plane_manufacturer", "scheduled_minute", "scheduled_arrival_minute", "weekday",
    "origin_departures_hour", "distance", "plane_age", "plane_seats", "temp", "dewp", "humid", "wind_speed", "precip",
    "pressure", "visib", "dest_lat", "dest_lon",
]  # fmt: skip


@cache
def flights(raw: Path) -> pd.DataFrame:
    """All flights of 2013 with a known arrival delay, as flat columns; a missing value is null."""
    table = pd.read_csv(raw / "flights.csv.zip")
    table["time_hour"] = pd.to_datetime(table["time_hour"], utc=True)
    weather = pd.read_csv(raw / "weather.csv").drop_duplicates(["origin", "time_hour"])
    weather["time_hour"] = pd.to_datetime(weather["time_hour"], utc=True)
    weather_columns = ["temp", "dewp", "humid", "wind_speed", "precip", "pressure", "visib"]
    planes = pd.read_csv(raw / "planes.csv")[["tailnum", "year", "manufacturer", "seats"]]
    airports = pd.read_csv(raw / "airports.csv")[["faa", "lat", "lon"]]
    table["origin_departures_hour"] = table.groupby(["origin", "time_hour"])["flight"].transform("size")
    table = table[table["arr_delay"].notna()]
    table = table.merge(weather[["origin", "time_hour", *weather_columns]], how="left", on=["origin", "time_hour"])
    table = table.merge(planes.rename(columns={"year": "built"}), how="left", on="tailnum")
    table = table.merge(airports.rename(columns={"faa": "dest"}), how="left", on="dest")
    scheduled_at = table["time_hour"] + pd.to_timedelta(table["minute"], unit="min")
    seconds = (scheduled_at - pd.Timestamp(0, tz="UTC")) // pd.Timedelta(seconds=1)
    flights = pd.DataFrame(
        {
            "flight_id": table["carrier"] + table["flight"].astype(str) + table["origin"] + "@" + seconds.astype(str),
            "scheduled_at": seconds,
            "late": (table["arr_delay"] >= 15).astype("int64"),
            "carrier": table["carrier"],
            "origin": table["origin"],
            "dest": table["dest"],
            "plane_manufacturer": table["manufacturer"],
            "scheduled_minute": table["hour"] * 60 + table["minute"],
            "scheduled_arrival_minute": table["sched_arr_time"] // 100 * 60 + table["sched_arr_time"] % 100,
            "weekday": pd.to_datetime(table[["year", "month", "day"]]).dt.day_of_week.astype("int64"),
            "origin_departures_hour": table["origin_departures_hour"].astype("int64"),
            "distance": table["distance"].astype("float64"),
            "plane_age": 2013.0 - table["built"],
            "plane_seats": table["seats"].astype("float64"),
            **{name: table[name].astype("float64") for name in weather_columns},
            "dest_lat": table["lat"],
            "dest_lon": table["lon"],
            "month": table["month"],
        }
    )
    return flights.sort_values("scheduled_at", kind="stable").reset_index(drop=True)


def months(raw: Path, first: int, last: int) -> pd.DataFrame:
    """The flights from one month to another, both included."""
    table = flights(raw)
    return table[table["month"].between(first, last)].drop(columns="month").reset_index(drop=True)


def to_arrow(frame: pd.DataFrame) -> pa.Table:
    """The frame as an Arrow table; NaN becomes null."""
    return pa.Table.from_pandas(frame, preserve_index=False).replace_schema_metadata(None)


def write_examples(
    store: ArtifactStore, splits: dict[str, pd.DataFrame | pa.Table], *, run_id: str = "fixture", **properties: Any
) -> Artifact:
    """Publishes an `examples` artifact with the given splits."""
    uri = store.uri("tests", run_id, "prepare", "examples")
    with store.create(uri, "examples", Producer("tests", run_id, "prepare")) as writer:
        rows = {}
        for name, frame in splits.items():
            table = frame if isinstance(frame, pa.Table) else to_arrow(frame)
            (writer.path / name).mkdir()
            pq.write_table(table, writer.path / name / "part-00000.parquet")
            rows[name] = RowCounts(table.num_rows, table.num_rows)
        return writer.commit(rows=rows, properties={**PROPERTIES, "splits": list(splits), "window": None, **properties})


def statistics_of(run_step: Any, launcher: Any, splits: dict[str, pd.DataFrame], **told: Any) -> Any:
    """The statistics of examples with the given splits, made by a step."""
    inputs = {"examples": write_examples(run_step.store, splits, **told)}
    return run_step("airflow_hops.ml.statistics.stage:run", inputs=inputs, kind="statistics", launcher=launcher)
