"""The model server as deploy, rollout and the traffic operators steer it."""

from airflow_hops.ml.model_server.server import ModelServer
from airflow_hops.ml.model_server.version_folders import check_model

__all__ = ["ModelServer", "check_model"]
