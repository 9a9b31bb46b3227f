"""The schema: inferred once from the statistics of the training split, and frozen for the pipeline's later runs."""

from airflow_hops.runtime.schema.files import SCHEMA_FILE, load_schema, to_text
from airflow_hops.runtime.schema.infer import SERVING, TRAINING, infer_schema
from airflow_hops.runtime.schema.stage import run

__all__ = ["SCHEMA_FILE", "SERVING", "TRAINING", "infer_schema", "load_schema", "run", "to_text"]
