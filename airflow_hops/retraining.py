"""Retraining API for DAG authors: policies, conditions, and the operator that requests a retraining."""

from airflow_hops.core.retraining.conditions import (
    Age,
    AllOf,
    AnyOf,
    Condition,
    Drift,
    Finding,
    Memory,
    NewRows,
    PipelineFault,
    PredictionDrift,
    Rejected,
    RolloutRunning,
)
from airflow_hops.core.retraining.decision import RetrainingDecision, RetrainingRequest, decide
from airflow_hops.core.retraining.performance import Performance
from airflow_hops.core.retraining.policy import (
    Budget,
    Expanding,
    RetrainingPolicy,
    SinceChange,
    Sliding,
    TrainingWindow,
)
from airflow_hops.core.retraining.situation import Situation
from airflow_hops.core.retraining.triggered import window_end, window_start
from airflow_hops.operators.retraining import RequestRetrainingOperator
from airflow_hops.operators.retraining_loop import retraining_loop

__all__ = [
    "Age",
    "AllOf",
    "AnyOf",
    "Budget",
    "Condition",
    "Drift",
    "Expanding",
    "Finding",
    "Memory",
    "NewRows",
    "Performance",
    "PipelineFault",
    "PredictionDrift",
    "Rejected",
    "RequestRetrainingOperator",
    "RetrainingDecision",
    "RetrainingPolicy",
    "RetrainingRequest",
    "RolloutRunning",
    "SinceChange",
    "Situation",
    "Sliding",
    "TrainingWindow",
    "decide",
    "retraining_loop",
    "window_end",
    "window_start",
]
