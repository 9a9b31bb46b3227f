"""Proposes a project from the columns of a table, for ``airflow hops init``."""
