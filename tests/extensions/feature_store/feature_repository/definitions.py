"""Feature views of the tests: delays of carriers, with late arrivals, and the weather at airports."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

from feast import Entity, FeatureService, FeatureView, Field, FileSource, PushSource, ValueType
from feast.types import Float32, Int64, String

DATA = Path(os.environ["HOPS_TEST_FEATURES"])

carrier = Entity(name="carrier", join_keys=["carrier_id"])  # as feast init writes it: the source has the type
airport = Entity(name="airport", join_keys=["airport_id"], value_type=ValueType.STRING)

delays = FileSource(
    name="delays_file", path=str(DATA / "delays.parquet"), timestamp_field="at", created_timestamp_column="created"
)
carrier_delays = FeatureView(
    name="carrier_delays",
    entities=[carrier],
    ttl=timedelta(hours=6),
    schema=[Field(name="mean_delay", dtype=Float32), Field(name="flights", dtype=Int64)],
    source=PushSource(name="delays_push", batch_source=delays),
    owner="ops@example.com",
)
airport_weather = FeatureView(
    name="airport_weather",
    entities=[airport],
    ttl=timedelta(days=30),
    schema=[Field(name="wind", dtype=Float32), Field(name="sky", dtype=String)],
    source=FileSource(name="weather_file", path=str(DATA / "weather.parquet"), timestamp_field="at"),
)
scoring = FeatureService(name="scoring", features=[carrier_delays[["mean_delay"]], airport_weather])
