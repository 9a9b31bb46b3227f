"""The demo's client gives a flight the very features that the pipeline trains on, column by column."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from airflow_hops.ml import ingest, prepare
from demo.client import INPUTS, scheduled_flights
from tests.ml.world import World

START, END = "2013-02-10", "2013-02-13"


@pytest.fixture(scope="module")
def untidy_raw(flights_raw: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The raw tables of a week; some of the rows hold what such tables do elsewhere."""
    folder = tmp_path_factory.mktemp("raw")
    flights = pd.read_csv(flights_raw / "flights.csv.zip")
    flights = flights[flights["time_hour"].between("2013-02-08", "2013-02-14")].reset_index(drop=True)
    flights.loc[::50, "sched_arr_time"] = 2400
    flights.to_csv(folder / "flights.csv.zip", index=False)
    weather = pd.read_csv(flights_raw / "weather.csv")
    weather = weather[weather["time_hour"].between("2013-02-08", "2013-02-14")].reset_index(drop=True)
    weather.loc[::40, "wind_speed"] = 1048.36
    pd.concat([weather, weather[::30].assign(temp=0.0, pressure=np.nan)]).to_csv(folder / "weather.csv", index=False)
    planes = pd.read_csv(flights_raw / "planes.csv")
    planes.loc[::20, "year"], planes.loc[1::20, "year"], planes.loc[::30, "seats"] = 0, 2014, 0
    planes.to_csv(folder / "planes.csv", index=False)
    pd.read_csv(flights_raw / "airports.csv").to_csv(folder / "airports.csv", index=False)
    return folder


def test_client_and_pipeline_give_a_flight_the_same_features(spark: Any, world: World, untidy_raw: Path) -> None:
    sources = {
        "flights": {"uri": str(untidy_raw / "flights.csv.zip"), "time_column": "time_hour"},
        "weather": {"uri": str(untidy_raw / "weather.csv"), "time_column": "time_hour"},
        "planes": {"uri": str(untidy_raw / "planes.csv")},
        "airports": {"uri": str(untidy_raw / "airports.csv")},
    }
    snapshot = world.run(ingest, sources=sources, window_start=START, window_end=END)
    columns = {"label": "late", "key": "flight_id", "time": "scheduled_at"}
    examples = world.run(prepare, tables=snapshot, prepare="flights.prepare:prepare", **columns)
    trained = pd.concat(pd.read_parquet(path) for path in world.store.local(examples).glob("*/*.parquet"))
    served = scheduled_flights(untidy_raw, START, END)
    assert set(INPUTS) == set(trained.columns) - {"flight_id", "late"}
    # Flights that never arrived have no label, and are served alone.
    assert len(trained) == served["late"].notna().sum() > 2000
    trained["number"] = trained["flight_id"].str.extract(r"^..(\d+)-")[0].astype(int)
    served["number"] = served["flight_id"].str.split("|").str[2].astype(int)
    identity = ["scheduled_at", "carrier", "number", "origin", "dest"]
    both = trained.merge(served, on=identity, suffixes=("", "_served"), validate="one_to_one")
    assert len(both) == len(trained)
    for name in (name for name in [*INPUTS, "late"] if name not in identity):
        expected, result = both[name], both[f"{name}_served"]
        if name == "plane_manufacturer":
            expected = expected.fillna("")  # as a missing string reaches the model
        else:
            expected, result = expected.astype("float32"), result.astype("float32")
        differ = both[~((expected == result) | (expected.isna() & result.isna()))]
        assert differ.empty, f"{name}: {len(differ)} of {len(both)}:\n{differ[[name, f'{name}_served']].head()}"
