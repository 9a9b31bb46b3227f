"""The kinds ``sagemaker`` and ``databricks`` of model servers: endpoints of clouds, which clients ask directly."""

from airflow_hops.core.serving_api.server_kinds import ModelServerKind

SAGEMAKER = ModelServerKind(
    "airflow_hops.extensions.cloud_endpoints.ml.sagemaker:SageMakerServer",
    is_bundled=False,
    services="airflow_hops.extensions.cloud_endpoints.hooks:sagemaker_services",
)
DATABRICKS = ModelServerKind(
    "airflow_hops.extensions.cloud_endpoints.ml.databricks:DatabricksServer",
    is_bundled=False,
    services="airflow_hops.extensions.cloud_endpoints.hooks:databricks_services",
)
