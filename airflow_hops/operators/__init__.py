"""Operators, one module a stage."""

from __future__ import annotations

from airflow_hops.core.sources.sources import FileSource, Source
from airflow_hops.operators.base import HopsOperator
from airflow_hops.operators.deploy import DeployModelOperator
from airflow_hops.operators.evaluate import EvaluateOperator
from airflow_hops.operators.infra_validate import InfraValidateOperator
from airflow_hops.operators.ingest import IngestOperator
from airflow_hops.operators.performance import PerformanceOperator
from airflow_hops.operators.prepare import PrepareOperator
from airflow_hops.operators.retraining import RequestRetrainingOperator
from airflow_hops.operators.retraining_loop import retraining_loop
from airflow_hops.operators.retries import HopsRetryPolicy
from airflow_hops.operators.rollout import RolloutOperator
from airflow_hops.operators.schema import SchemaOperator
from airflow_hops.operators.serving import (
    PromoteModelOperator,
    RollbackModelOperator,
    SetTrafficOperator,
    UndeployModelOperator,
)
from airflow_hops.operators.skew import SkewOperator
from airflow_hops.operators.statistics import StatisticsOperator
from airflow_hops.operators.training import HorovodTrainOperator, TrainOperator
from airflow_hops.operators.training_loop import training_loop
from airflow_hops.operators.transform import TransformOperator
from airflow_hops.operators.validation import ValidateExamplesOperator

__all__ = [
    "DeployModelOperator",
    "EvaluateOperator",
    "FileSource",
    "HopsOperator",
    "HopsRetryPolicy",
    "HorovodTrainOperator",
    "InfraValidateOperator",
    "IngestOperator",
    "PerformanceOperator",
    "PrepareOperator",
    "PromoteModelOperator",
    "RequestRetrainingOperator",
    "RollbackModelOperator",
    "RolloutOperator",
    "SchemaOperator",
    "SetTrafficOperator",
    "SkewOperator",
    "Source",
    "StatisticsOperator",
    "TrainOperator",
    "TransformOperator",
    "UndeployModelOperator",
    "ValidateExamplesOperator",
    "retraining_loop",
    "training_loop",
]
