"""Keras 3 with Horovod's collectives, under the names that Horovod uses."""

from airflow_hops.ml.training.keras.callbacks import BroadcastCallback, MetricAverageCallback
from airflow_hops.ml.training.keras.exchange import DistributedGradientTape
from airflow_hops.ml.training.keras.guard import GUARD_EVERY_STEPS, Guard
from airflow_hops.ml.training.keras.optimizer import (
    DistributedOptimizer,
    average_before_loss_scaling,
    exchange_seconds,
    is_distributed,
)
from airflow_hops.ml.training.keras.weights import broadcast_weights, check_weights, rank_variables, weights_checksum

__all__ = [
    "GUARD_EVERY_STEPS",
    "BroadcastCallback",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "Guard",
    "MetricAverageCallback",
    "average_before_loss_scaling",
    "broadcast_weights",
    "check_weights",
    "exchange_seconds",
    "is_distributed",
    "rank_variables",
    "weights_checksum",
]
