"""When to retrain: policies, their conditions, and the decision."""

from airflow_hops.core.contract.retraining.conditions import (
    Age,
    AllOf,
    AnyOf,
    Condition,
    Drift,
    Finding,
    Memory,
    NewRows,
    PipelineFault,
    Rejected,
    RolloutRunning,
)
from airflow_hops.core.contract.retraining.decision import PERSON, REFUSED, REQUESTED, Decision, Request, decide
from airflow_hops.core.contract.retraining.performance import Performance
from airflow_hops.core.contract.retraining.policy import Budget, RetrainingPolicy
from airflow_hops.core.contract.retraining.situation import Situation, as_utc, moment_of
from airflow_hops.core.contract.retraining.triggered import extras, requested_window, window_end, window_start
from airflow_hops.core.contract.retraining.windows import Expanding, SinceChange, Sliding, TrainingWindow

__all__ = [
    "PERSON",
    "REFUSED",
    "REQUESTED",
    "Age",
    "AllOf",
    "AnyOf",
    "Budget",
    "Condition",
    "Decision",
    "Drift",
    "Expanding",
    "Finding",
    "Memory",
    "NewRows",
    "Performance",
    "PipelineFault",
    "Rejected",
    "Request",
    "RetrainingPolicy",
    "RolloutRunning",
    "SinceChange",
    "Situation",
    "Sliding",
    "TrainingWindow",
    "as_utc",
    "decide",
    "extras",
    "moment_of",
    "requested_window",
    "window_end",
    "window_start",
]
