"""Hyperparameter search: the space, the options, and the record of a study."""

from airflow_hops.extensions.experiments.core.search.options import DIRECTIONS, PRUNERS, SAMPLERS, SearchOptions
from airflow_hops.extensions.experiments.core.search.space import Choice, IntUniform, LogUniform, Space, Uniform
from airflow_hops.extensions.experiments.core.search.study import MAX_INTERMEDIATE, StudyRecord, TrialRecord

__all__ = [
    "DIRECTIONS",
    "MAX_INTERMEDIATE",
    "PRUNERS",
    "SAMPLERS",
    "Choice",
    "IntUniform",
    "LogUniform",
    "SearchOptions",
    "Space",
    "StudyRecord",
    "TrialRecord",
    "Uniform",
]
