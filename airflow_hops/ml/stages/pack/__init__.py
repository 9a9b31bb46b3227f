"""Stage that packs many small files into a few large ones."""

from airflow_hops.ml.stages.pack.stage import run

__all__ = ["run"]
