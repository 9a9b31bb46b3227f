"""All names of Airflow outside ``airflow.sdk`` and its providers that this package uses.

Airflow may move or change them in any minor version. They are in modules by what imports them, since some are slow to
import.
"""
