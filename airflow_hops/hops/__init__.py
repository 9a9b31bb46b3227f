"""The library that user code imports in the runtime environment; each name is imported when it is first used."""

from typing import TYPE_CHECKING

from airflow_hops.core.arrow_hotfix import refuse_pickled_types
from airflow_hops.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from airflow_hops.core.artifacts.artifact import Artifact, RowCounts
    from airflow_hops.core.errors import BadInput, HopsError
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
    from airflow_hops.ml.models.export import ExportedModel, export_model
    from airflow_hops.ml.step.context import StepContext
    from airflow_hops.ml.training import devices, keras, reader
    from airflow_hops.ml.training.context import TrainContext, current_context
    from airflow_hops.ml.training.keras import (
        BroadcastCallback,
        DistributedGradientTape,
        DistributedOptimizer,
        Guard,
        MetricAverageCallback,
        broadcast_weights,
        check_weights,
        weights_checksum,
    )
    from airflow_hops.ml.training.reader import SplitReader, open_split, row_count, split_names

_MODULES = {
    "airflow_hops.core.artifacts.artifact": "Artifact RowCounts",
    "airflow_hops.core.errors": "BadInput HopsError",
    "airflow_hops.ml.features": "preprocessing",
    "airflow_hops.ml.features.constants": "Constants",
    "airflow_hops.ml.features.preprocessing": "bucketize columns cyclic fill_missing is_missing one_hot vocabulary_ids "
    "z_score",
    "airflow_hops.ml.models.export": "ExportedModel export_model",
    "airflow_hops.ml.step.context": "StepContext",
    "airflow_hops.ml.training": "devices keras reader",
    "airflow_hops.ml.training.context": "TrainContext current_context",
    "airflow_hops.ml.training.keras": "BroadcastCallback DistributedGradientTape DistributedOptimizer "
    "Guard MetricAverageCallback broadcast_weights check_weights "
    "weights_checksum",
    "airflow_hops.ml.training.reader": "SplitReader open_split row_count split_names",
}
__all__ = [
    "Artifact",
    "BadInput",
    "BroadcastCallback",
    "Constants",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "ExportedModel",
    "Guard",
    "HopsError",
    "MetricAverageCallback",
    "RowCounts",
    "SplitReader",
    "StepContext",
    "TrainContext",
    "broadcast_weights",
    "bucketize",
    "check_weights",
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
    "split_names",
    "vocabulary_ids",
    "weights_checksum",
    "z_score",
]

refuse_pickled_types()  # files must not run code when they are read

__getattr__ = lazy_names(__name__, _MODULES)
