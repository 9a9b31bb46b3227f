"""Controls a model server for the steps of deploy, rollout and the traffic operators."""

from airflow_hops.ml.model_server.server import ModelServer
from airflow_hops.ml.model_server.version_folders import check_model

__all__ = ["ModelServer", "check_model"]
