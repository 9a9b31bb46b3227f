"""The kind ``kserve`` of model servers: the bundled server as a gateway to KServe."""

from airflow_hops.core.serving_api.server_kinds import ModelServerKind

KSERVE = ModelServerKind(
    "airflow_hops.extensions.kubernetes.ml.kserve:KServeServer",
    services="airflow_hops.extensions.kubernetes.hooks:kserve_services",
)
