"""Schemas: inferred once from the statistics of the training split, and frozen for later runs of the pipeline."""

from airflow_hops.core.schema.changes import Change
from airflow_hops.ml.schema.diff import SchemaDiff, diff_schemas
from airflow_hops.ml.schema.evolve import propose_schema
from airflow_hops.ml.schema.infer import SERVING, TRAINING, classes_of, infer_schema, set_classes
from airflow_hops.ml.schema_files import SCHEMA_FILE, load_schema, parse_schema, to_text

__all__ = [
    "SCHEMA_FILE",
    "SERVING",
    "TRAINING",
    "Change",
    "SchemaDiff",
    "classes_of",
    "diff_schemas",
    "infer_schema",
    "load_schema",
    "parse_schema",
    "propose_schema",
    "set_classes",
    "to_text",
]
