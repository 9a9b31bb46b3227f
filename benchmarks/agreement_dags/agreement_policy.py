"""The policy of both the live loop and the back-test."""

from __future__ import annotations

from datetime import timedelta

from airflow_hops.retraining import Age, AnyOf, Drift, RetrainingPolicy

POLICY = RetrainingPolicy(when=AnyOf(Drift(), Age(timedelta(days=80))), cooldown=timedelta(days=40))
ALLOWED = {
    "temp": 0.93,
    "dewp": 0.75,
    "humid": 0.4,
    "wind_speed": 0.3,
    "precip": 0.2,
    "visib": 0.3,
    "origin_departures_hour": 0.25,
    "weekday": 0.2,
    **dict.fromkeys(("scheduled_minute", "scheduled_arrival_minute", "dest", "dest_lat", "dest_lon"), 0.1),
}
"""Distances of the features whose drift counts otherwise than by default, as of the example DAG."""
