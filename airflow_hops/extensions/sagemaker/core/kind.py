"""The kind ``sagemaker`` of model servers: endpoints of Amazon SageMaker, which clients ask directly."""

from airflow_hops.core.serving_api.server_kinds import ModelServerKind

SAGEMAKER = ModelServerKind(
    "airflow_hops.extensions.sagemaker.ml.server:SageMakerServer",
    is_bundled=False,
    services="airflow_hops.extensions.sagemaker.hooks:sagemaker_services",
)
