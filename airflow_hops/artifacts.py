"""The names that users' functions import from here: :mod:`airflow_hops.contract.artifacts` has them."""

from airflow_hops.contract.artifacts import Artifact, BadInput, HopsError, RowCounts

__all__ = ["Artifact", "BadInput", "HopsError", "RowCounts"]
