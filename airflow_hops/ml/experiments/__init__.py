"""Experiments: a function that is run in processes of the step, and what is kept of it in the store."""

from airflow_hops.ml.experiments.experiment import Experiment, run_experiment

__all__ = ["Experiment", "run_experiment"]
