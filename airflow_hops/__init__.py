"""End-to-end machine-learning pipelines in Apache Airflow.

All that a DAG file, a function of user code or a notebook needs is imported from here: operators, sources, policies of
retraining, errors, the training context, preprocessing, statistics. Importing this package imports neither Airflow nor
TensorFlow, since both environments share it: a name is imported when it is used, in the environment that has it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_hops.core.artifacts.target import Target as Target
    from airflow_hops.core.errors import ArtifactNotFound as ArtifactNotFound
    from airflow_hops.core.errors import ConnectionFieldError as ConnectionFieldError
    from airflow_hops.core.errors import ConnectionNotFound as ConnectionNotFound
    from airflow_hops.core.errors import DamagedArtifact as DamagedArtifact
    from airflow_hops.core.errors import InvalidArgument as InvalidArgument
    from airflow_hops.core.errors import MachineLost as MachineLost
    from airflow_hops.core.errors import MissingColumn as MissingColumn
    from airflow_hops.core.errors import ModelNotFound as ModelNotFound
    from airflow_hops.core.errors import Preempted as Preempted
    from airflow_hops.core.errors import QuotaExceeded as QuotaExceeded
    from airflow_hops.core.errors import RowsNotConserved as RowsNotConserved
    from airflow_hops.core.errors import SchemaMismatch as SchemaMismatch
    from airflow_hops.core.errors import ServerUnreachable as ServerUnreachable
    from airflow_hops.core.errors import StepFailed as StepFailed
    from airflow_hops.core.errors import StoreAway as StoreAway
    from airflow_hops.core.errors import UnreadableFile as UnreadableFile
    from airflow_hops.core.errors import step_error as step_error
    from airflow_hops.core.serving_api.answers import ModelServerError as ModelServerError
    from airflow_hops.core.serving_api.client import ModelServerClient as ModelServerClient
    from airflow_hops.hooks.model_server import ModelServerHook as ModelServerHook
    from airflow_hops.hops import *  # noqa: F403
    from airflow_hops.ml.captured.feedback import join_feedback as join_feedback
    from airflow_hops.ml.captured.feedback import read_feedback as read_feedback
    from airflow_hops.ml.evaluate.stage import evaluate_model as evaluate_model
    from airflow_hops.ml.features.constants import Vocabulary as Vocabulary
    from airflow_hops.ml.schema import diff_schemas as diff_schemas
    from airflow_hops.ml.schema import infer_schema as infer_schema
    from airflow_hops.ml.schema import load_schema as load_schema
    from airflow_hops.ml.schema import propose_schema as propose_schema
    from airflow_hops.ml.skew import Attribution as Attribution
    from airflow_hops.ml.skew import FeatureSkew as FeatureSkew
    from airflow_hops.ml.skew import SkewReport as SkewReport
    from airflow_hops.ml.skew import attribute_drift as attribute_drift
    from airflow_hops.ml.skew import detect_skew as detect_skew
    from airflow_hops.ml.statistics import generate_statistics as generate_statistics
    from airflow_hops.ml.statistics import load_sample as load_sample
    from airflow_hops.ml.statistics import load_statistics as load_statistics
    from airflow_hops.ml.training.tables import SplitTable as SplitTable
    from airflow_hops.ml.validation import Anomaly as Anomaly
    from airflow_hops.ml.validation import list_anomalies as list_anomalies
    from airflow_hops.ml.validation import validate_statistics as validate_statistics
    from airflow_hops.ml.validation.quarantine import split_anomalous as split_anomalous
    from airflow_hops.operators import *  # noqa: F403
    from airflow_hops.retraining import *  # noqa: F403
    from airflow_hops.sensors.model_version import ModelVersionSensor as ModelVersionSensor
    from airflow_hops.triggers.model_version import ModelVersionTrigger as ModelVersionTrigger

__version__ = "0.1.0"

_MODULES = {
    "airflow_hops.core.artifacts.artifact": "Artifact RowCounts",
    "airflow_hops.core.artifacts.target": "Target",
    "airflow_hops.core.errors": (
        "ArtifactNotFound BadInput ConnectionFieldError ConnectionNotFound DamagedArtifact HopsError InvalidArgument "
        "MachineLost MissingColumn ModelNotFound Preempted QuotaExceeded RowsNotConserved SchemaMismatch "
        "ServerUnreachable StepFailed StoreAway UnreadableFile step_error"
    ),
    "airflow_hops.core.serving_api.answers": "ModelServerError",
    "airflow_hops.core.serving_api.client": "ModelServerClient",
    "airflow_hops.hooks.model_server": "ModelServerHook",
    "airflow_hops.hops": (
        "BroadcastCallback Constants DistributedGradientTape DistributedOptimizer ExportedModel Guard "
        "MetricAverageCallback SplitReader StepContext TrainContext "
        "broadcast_weights bucketize check_weights columns current_context cyclic devices export_model fill_missing "
        "is_missing keras one_hot open_split preprocessing reader row_count split_names vocabulary_ids "
        "weights_checksum z_score"
    ),
    "airflow_hops.ml.features.constants": "Vocabulary",
    "airflow_hops.ml.captured.feedback": "join_feedback read_feedback",
    "airflow_hops.ml.skew": "Attribution FeatureSkew SkewReport attribute_drift detect_skew",
    "airflow_hops.ml.schema": "diff_schemas infer_schema load_schema propose_schema",
    "airflow_hops.ml.evaluate.stage": "evaluate_model",
    "airflow_hops.ml.validation": "Anomaly list_anomalies validate_statistics",
    "airflow_hops.ml.validation.quarantine": "split_anomalous",
    "airflow_hops.ml.statistics": "generate_statistics load_sample load_statistics",
    "airflow_hops.ml.training.tables": "SplitTable",
    "airflow_hops.sensors.model_version": "ModelVersionSensor",
    "airflow_hops.triggers.model_version": "ModelVersionTrigger",
    "airflow_hops.retraining": (
        "Age AllOf AnyOf Budget Condition Drift Expanding Finding Memory NewRows Performance PipelineFault "
        "PredictionDrift Rejected RequestRetrainingOperator RetrainingDecision RetrainingPolicy RetrainingRequest "
        "RolloutRunning SinceChange Situation Sliding TrainingWindow decide retraining_loop window_end window_start"
    ),
    "airflow_hops.operators": (
        "DeployModelOperator EvaluateOperator FileSource HopsOperator HopsRetryPolicy HorovodTrainOperator "
        "InfraValidateOperator IngestOperator PerformanceOperator PrepareOperator PromoteModelOperator "
        "RollbackModelOperator RolloutOperator SchemaOperator SetTrafficOperator SkewOperator Source "
        "StatisticsOperator TrainOperator TransformOperator UndeployModelOperator ValidateExamplesOperator "
        "training_loop"
    ),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names.split()}
__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        value = globals()[name] = getattr(import_module(_MODULE_OF[name]), name)
    except ModuleNotFoundError as error:
        error.add_note(
            f"airflow_hops.{name} is for the other environment. A DAG file does not import modules that use it: it "
            "names their functions, as 'module:function'"
        )
        raise
    return value


def get_provider_info() -> dict[str, object]:
    """Returns the provider information for Airflow: connection types, decorators, configuration, commands."""
    from airflow_hops.provider_info import provider_info

    return provider_info()
