"""Statistics of examples, equal to TFDV's, without Beam."""

from airflow_hops.ml.statistics.files import STATISTICS_FILE, SUMMARY_FILE, load_statistics
from airflow_hops.ml.statistics.generate import comparable_options, generate_statistics

__all__ = ["STATISTICS_FILE", "SUMMARY_FILE", "comparable_options", "generate_statistics", "load_statistics"]
