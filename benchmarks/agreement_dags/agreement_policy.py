"""The policy of both the live loop and the back-test."""

from __future__ import annotations

from datetime import timedelta

from airflow_hops.retraining import Age, AnyOf, Drift, RetrainingPolicy

POLICY = RetrainingPolicy(when=AnyOf(Drift(), Age(timedelta(days=80))), cooldown=timedelta(days=40))
ALLOWED = {
    "temp": ("wasserstein", 25.0),
    "dewp": ("wasserstein", 30.0),
    "precip": ("kolmogorov_smirnov", 0.3),
    "visib": ("kolmogorov_smirnov", 0.3),
}
"""Measures and thresholds of the features whose drift counts otherwise than by default, as of the example DAG."""
