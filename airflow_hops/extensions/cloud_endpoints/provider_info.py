"""Provider information: fields of a connection whose model server is of the kind ``sagemaker`` or ``databricks``."""

from __future__ import annotations

from typing import Any

from airflow_hops.provider_info import field

PROVIDER_INFO: dict[str, Any] = {
    "connection-fields": {
        "hops": {
            "serving_aws_conn_id": field(
                "AWS connection", "sagemaker: connection of type aws. Empty: the credentials of the step's machine"
            ),
            "serving_sagemaker": field(
                "SageMaker",
                'sagemaker: JSON object {"ExecutionRoleArn": …, "Container": {"Image": …}, "Variant": {"InstanceType": '
                '…, "InitialInstanceCount": …}}, and optionally "DataCaptureConfig"',
            ),
            "serving_databricks_conn_id": field(
                "Databricks connection", "databricks: connection of type databricks. Empty: databricks_default"
            ),
            "serving_databricks": field(
                "Databricks",
                'databricks: JSON object {"entity_name": "main.models.{model}", "served_entity": {"workload_size": '
                '"Small", "scale_to_zero_enabled": false}}, and optionally "endpoint": {"ai_gateway": …}',
            ),
        }
    },
}
