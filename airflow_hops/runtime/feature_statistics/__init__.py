"""Statistics of examples, equal to TFDV's, without Beam."""

from airflow_hops.runtime.feature_statistics.files import STATISTICS_FILE, SUMMARY_FILE, load_statistics
from airflow_hops.runtime.feature_statistics.generate import comparable_options, generate_statistics
from airflow_hops.runtime.feature_statistics.stage import run

__all__ = ["STATISTICS_FILE", "SUMMARY_FILE", "comparable_options", "generate_statistics", "load_statistics", "run"]
