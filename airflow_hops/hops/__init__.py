"""The library that user code imports in the runtime environment; each name is imported when it is first used."""

import importlib
from typing import TYPE_CHECKING, Any

from airflow_hops.core.processes.arrow_hotfix import refuse_pickled_types

if TYPE_CHECKING:
    from airflow_hops.core.contract.artifacts import Artifact, BadInput, HopsError, RowCounts
    from airflow_hops.ml.features import preprocessing
    from airflow_hops.ml.features.constants import Constants
    from airflow_hops.ml.features.preprocessing import (
        bucketize,
        columns,
        cyclic,
        fill_missing,
        is_missing,
        one_hot,
        vocabulary_ids,
        z_score,
    )
    from airflow_hops.ml.models import scikit_learn
    from airflow_hops.ml.models.export import ExportedModel, export_model
    from airflow_hops.ml.step.context import StepContext
    from airflow_hops.ml.training import devices, keras, reader
    from airflow_hops.ml.training.context import TrainContext, current_context
    from airflow_hops.ml.training.keras import (
        BroadcastCallback,
        DistributedGradientTape,
        DistributedOptimizer,
        LearningRateSchedule,
        LearningRateWarmup,
        MetricAverageCallback,
        NanStopCallback,
        StatisticsAverageCallback,
        broadcast_weights,
        scale_learning_rate,
    )
    from airflow_hops.ml.training.reader import SplitReader, open_split, row_count, split_names

_MODULES = {
    "core.contract.artifacts": "Artifact BadInput HopsError RowCounts",
    "ml.features": "preprocessing",
    "ml.features.constants": "Constants",
    "ml.features.preprocessing": "bucketize columns cyclic fill_missing is_missing one_hot vocabulary_ids z_score",
    "ml.models": "scikit_learn",
    "ml.models.export": "ExportedModel export_model",
    "ml.step.context": "StepContext",
    "ml.training": "devices keras reader",
    "ml.training.context": "TrainContext current_context",
    "ml.training.keras": "BroadcastCallback DistributedGradientTape DistributedOptimizer LearningRateSchedule "
    "LearningRateWarmup MetricAverageCallback NanStopCallback StatisticsAverageCallback broadcast_weights "
    "scale_learning_rate",
    "ml.training.reader": "SplitReader open_split row_count split_names",
}
_MODULE_OF = {name: f"airflow_hops.{module}" for module, names in _MODULES.items() for name in names.split()}

__all__ = [
    "Artifact",
    "BadInput",
    "BroadcastCallback",
    "Constants",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "ExportedModel",
    "HopsError",
    "LearningRateSchedule",
    "LearningRateWarmup",
    "MetricAverageCallback",
    "NanStopCallback",
    "RowCounts",
    "SplitReader",
    "StatisticsAverageCallback",
    "StepContext",
    "TrainContext",
    "broadcast_weights",
    "bucketize",
    "columns",
    "current_context",
    "cyclic",
    "devices",
    "export_model",
    "fill_missing",
    "is_missing",
    "keras",
    "one_hot",
    "open_split",
    "preprocessing",
    "reader",
    "row_count",
    "scale_learning_rate",
    "scikit_learn",
    "split_names",
    "vocabulary_ids",
    "z_score",
]

refuse_pickled_types()  # files must not run code when they are read


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(_MODULE_OF[name])
    return getattr(module, name, None) or importlib.import_module(f"{module.__name__}.{name}")
