"""Provider information of Kubernetes: fields of a model server's connection of kind ``kserve``."""

from __future__ import annotations

from typing import Any

from airflow_hops.provider_info import field

PROVIDER_INFO: dict[str, Any] = {
    "connection-fields": {
        "model_server": {
            "kubernetes_conn_id": field(
                "Kubernetes connection", "kserve: connection of type kubernetes. Empty: kubernetes_default"
            ),
            "namespace": field("Namespace", "kserve: namespace of the InferenceServices. Empty: default"),
            "predictor": field(
                "Predictor",
                'kserve: JSON object for spec.predictor, such as {"serviceAccountName": "models", '
                '"model": {"runtime": "airflow-hops"}}. Empty: none',
            ),
        }
    },
}
