"""Hyperparameter search: the space, the options, and the record of a study."""

from airflow_hops.extensions.experiments.core.search.options import SearchOptions
from airflow_hops.extensions.experiments.core.search.space import Choice, IntUniform, LogUniform, Space, Uniform
from airflow_hops.extensions.experiments.core.search.study import StudyRecord, TrialRecord

__all__ = [
    "Choice",
    "IntUniform",
    "LogUniform",
    "SearchOptions",
    "Space",
    "StudyRecord",
    "TrialRecord",
    "Uniform",
]
