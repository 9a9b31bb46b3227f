"""Do live requests still look like the data that the serving model was trained on?

Takes the requests that the model server captured since last time, compares them with the statistics of the serving
model's own training data, and asks for a retraining when they have drifted.

Which of the flights were late is told to the server once they have landed, so that the model is also measured live.

The weather of one fortnight is never that of the next, and how many flights leave in an hour is not either. Which share
of the hours must differ before it is another season is written down here. In 15 days, one weekday occurs more often
than the others.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import Asset

from airflow_hops import AnyOf, Budget, Drift, Performance, RetrainingPolicy, retraining_loop

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

monitor = retraining_loop(
    "flights",
    policy=RetrainingPolicy(
        when=AnyOf(Drift(), Performance("auc", drop=0.1, window=timedelta(days=28))),
        cooldown=timedelta(days=7),
        champion_ends_cooldown=True,
        budget=Budget(6, timedelta(days=365)),
    ),
    asset=Asset("flights_drifted"),
    schedule="@daily",
    skew={"time_feature": "scheduled_at", "thresholds": ALLOWED},
    performance={"time_feature": "scheduled_at", "period": timedelta(days=7)},
    doc_md=__doc__,
)
