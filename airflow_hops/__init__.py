"""End-to-end machine-learning pipelines in Apache Airflow.

All that a DAG file needs is imported from here: operators, sources, policies of retraining, errors. Importing this
package imports neither Airflow nor TensorFlow, since both environments share it: a name is imported when it is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_hops.core.contract.artifacts import BadInput as BadInput
    from airflow_hops.core.contract.artifacts import HopsError as HopsError
    from airflow_hops.operators import *  # noqa: F403
    from airflow_hops.retraining import *  # noqa: F403
    from airflow_hops.sensors.model_version import ModelVersionSensor as ModelVersionSensor

__version__ = "0.1.0"

_MODULES = {
    "airflow_hops.core.contract.artifacts": "BadInput HopsError",
    "airflow_hops.sensors.model_version": "ModelVersionSensor",
    "airflow_hops.retraining": (
        "Age AllOf AnyOf Budget Condition Drift Expanding Finding Memory NewRows Performance PipelineFault "
        "PredictionDrift Rejected RequestRetrainingOperator RetrainingDecision RetrainingPolicy RetrainingRequest "
        "RolloutRunning SinceChange Situation Sliding TrainingWindow decide retraining_loop window_end window_start"
    ),
    "airflow_hops.operators": (
        "BatchPredictOperator CollectGarbageOperator DeployModelOperator EvaluateOperator FileSource HopsOperator "
        "HopsRetryPolicy HorovodTrainOperator InfraValidateOperator IngestOperator PerformanceOperator PrepareOperator "
        "PromoteModelOperator RollbackModelOperator RolloutOperator SchemaOperator SetTrafficOperator SkewOperator "
        "Source StatisticsOperator TrainOperator TransformOperator UndeployModelOperator ValidateExamplesOperator "
        "training_loop"
    ),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names.split()}
__all__ = sorted([*_MODULE_OF, "get_provider_info"])


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_MODULE_OF[name]), name)
    return value


def get_provider_info() -> dict[str, Any]:
    """Returns the provider information for Airflow: connection types, decorators, configuration, commands."""
    from airflow_hops.provider_info import provider_info

    return provider_info()
