"""The ML side of ``airflow hops reproduce``: finds a run in MLflow, and compares two models."""
