"""Statistics of examples, equal to TFDV's, without Beam."""

from airflow_hops.ml.statistics.files import STATISTICS_FILE, SUMMARY_FILE, load_statistics
from airflow_hops.ml.statistics.generate import comparable_options, generate_statistics
from airflow_hops.ml.statistics.sample import SAMPLE_FILE, load_sample

__all__ = [
    "SAMPLE_FILE",
    "STATISTICS_FILE",
    "SUMMARY_FILE",
    "comparable_options",
    "generate_statistics",
    "load_sample",
    "load_statistics",
]
