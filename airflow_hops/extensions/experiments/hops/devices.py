"""The GPUs of this process."""

from airflow_hops.ml.training.devices import get_num_gpus

__all__ = ["get_num_gpus"]
