"""Experiments: functions that run in processes of the step, and their records in the store."""

from airflow_hops.extensions.experiments.ml.experiment import Experiment, run_experiment

__all__ = ["Experiment", "run_experiment"]
