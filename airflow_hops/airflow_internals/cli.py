"""Names of Airflow's commands."""

from airflow import plugins_manager
from airflow.cli.simple_table import AirflowConsole
from airflow.providers_manager import ProvidersManager
from airflow.utils.cli import suppress_logs_and_warning

__all__ = ["AirflowConsole", "ProvidersManager", "plugins_manager", "suppress_logs_and_warning"]
