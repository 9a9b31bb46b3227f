"""Provider information of Kubernetes: fields of a connection whose model server is of the kind ``kserve``."""

from __future__ import annotations

from airflow_hops.provider_info import field

PROVIDER_INFO: dict[str, object] = {
    "connection-fields": {
        "hops": {
            "serving_kubernetes_conn_id": field(
                "Kubernetes connection", "kserve: connection of type kubernetes. Empty: kubernetes_default"
            ),
            "serving_namespace": field("Namespace", "kserve: namespace of the InferenceServices. Empty: default"),
            "serving_deployment_mode": field(
                "Deployment mode",
                "kserve: Knative, or Standard for KServe 0.20 or later without Knative. Empty: Knative",
            ),
            "serving_predictor": field(
                "Predictor",
                'kserve: JSON object for spec.predictor, such as {"serviceAccountName": "models", '
                '"model": {"runtime": "airflow-hops"}}. Empty: none',
            ),
        }
    },
}
