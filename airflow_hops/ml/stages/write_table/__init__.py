"""Stage that writes the rows of an artifact to a table."""

from airflow_hops.ml.stages.write_table.stage import run

__all__ = ["run"]
