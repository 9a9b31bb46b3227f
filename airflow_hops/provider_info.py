"""The provider information, as data."""

from __future__ import annotations

from typing import Any


def _field(label: str, description: str, type_: str = "string", default: Any = None) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": [type_, "null"]}
    if default is not None:
        schema["default"] = default
    return {"label": label, "description": description, "schema": schema}


def _option(description: str, type_: str, default: str | None, example: str | None = None) -> dict[str, Any]:
    return {
        "description": description,
        "version_added": "0.1.0",
        "type": type_,
        "example": example,
        "default": default,
    }


_PREDICTION_TOKEN = {
    "label": "Prediction token",
    "description": "One of --prediction_token_file; empty: the control token is shown",
    "schema": {"type": ["string", "null"], "format": "password"},
}
_TLS_FIELDS = {
    "ca_file": _field("CA file", "PEM file of who signed the server's certificate; turns TLS on for gRPC"),
    "cert_file": _field("Client certificate", "PEM file, for a server that verifies its clients"),
    "key_file": _field("Client key", "PEM file of the client certificate's private key"),
    "rest_tls": _field("REST by TLS", "Whether the REST port speaks TLS, too: --rest_api_enable_ssl", "boolean"),
}

PROVIDER_INFO: dict[str, Any] = {
    "package-name": "airflow-hops",
    "name": "Hops",
    "description": "End-to-end machine-learning pipelines: TFDV, Spark, Horovod, MLflow, TensorFlow Serving's API.",
    "integrations": [
        {
            "integration-name": "Hops",
            "external-doc-url": "https://pypi.org/project/airflow-hops/",
            "tags": ["software"],
        }
    ],
    "operators": [{"integration-name": "Hops", "python-modules": ["airflow_hops.operators"]}],
    "sensors": [{"integration-name": "Hops", "python-modules": ["airflow_hops.sensors.model_version"]}],
    "triggers": [
        {
            "integration-name": "Hops",
            "python-modules": ["airflow_hops.triggers.model_version", "airflow_hops.triggers.rollout"],
        }
    ],
    "hooks": [
        {
            "integration-name": "Hops",
            "python-modules": [
                "airflow_hops.hooks.runtime",
                "airflow_hops.hooks.ranks",
                "airflow_hops.hooks.model_server",
            ],
        }
    ],
    "connection-types": [
        {
            "connection-type": "hops",
            "hook-class-name": "airflow_hops.hooks.runtime.RuntimeHook",
            "hook-name": "Hops",
            "ui-field-behaviour": {
                "hidden-fields": ["schema", "login"],
                "relabeling": {
                    "host": "Model server host",
                    "port": "Model server gRPC port",
                    "password": "Model server control token",
                },
                "placeholders": {"host": "127.0.0.1", "port": "8500", "password": "none"},
            },
            "conn-fields": {
                "store": _field("Artifact store", "URI of the artifact store: file://, s3://, gs://, hdfs://"),
                "storage_options": _field("Storage options", "JSON passed to fsspec, e.g. an S3 endpoint_url"),
                "runtime": _field("Runtime environment", "Folder of the environment that holds TensorFlow and Spark"),
                "tracking_uri": _field("MLflow tracking URI", "Where runs and the model registry are kept"),
                "serving_rest_port": _field(
                    "Model server REST port", "TensorFlow Serving's --rest_api_port", "integer"
                ),
                "serving_base_path": _field("Model base path", "Folder into which model versions are published"),
                "serving_config_file": _field("Model config file", "TensorFlow Serving's --model_config_file"),
                "serving_traffic_file": _field("Traffic config file", "The bundled server's --traffic_config_file"),
                "serving_capture_path": _field(
                    "Capture path", "The bundled server's --capture_base_path: absolute path, or URI"
                ),
                "serving_prediction_token": _PREDICTION_TOKEN,
                **{f"serving_{name}": field for name, field in _TLS_FIELDS.items()},
                "serving_storage_options": _field(
                    "Model server storage options", "JSON passed to fsspec for the base path and the capture path"
                ),
            },
        },
        {
            "connection-type": "model_server",
            "hook-class-name": "airflow_hops.hooks.model_server.ModelServerHook",
            "hook-name": "Model server",
            "ui-field-behaviour": {
                "hidden-fields": ["schema", "login"],
                "relabeling": {"port": "gRPC port", "password": "Control token"},
                "placeholders": {"host": "127.0.0.1", "port": "8500", "password": "none"},
            },
            "conn-fields": {
                "kind": {
                    "label": "Kind",
                    "description": "The server of this package (also in front of others), or TensorFlow Serving's own",
                    "schema": {
                        "type": ["string", "null"],
                        "enum": ["bundled", "tensorflow_model_server"],
                        "default": "bundled",
                    },
                },
                "rest_port": _field("REST port", "--rest_api_port", "integer"),
                "base_path": _field(
                    "Model base path", "Folder into which model versions are published: absolute path, or URI"
                ),
                "server_base_path": _field(
                    "Model base path of the server", "The same folder as the server sees it; empty: under the same name"
                ),
                "storage_options": _field(
                    "Storage options", "JSON passed to fsspec for the base path and the capture path"
                ),
                "config_file": _field(
                    "Model config file", "--model_config_file, where worker and server share it; empty: sent by RPC"
                ),
                "traffic_file": _field(
                    "Traffic config file", "--traffic_config_file, where they share it; empty: set by RPC"
                ),
                "capture_path": _field("Capture path", "--capture_base_path: absolute path, or URI"),
                "prediction_token": _PREDICTION_TOKEN,
                **_TLS_FIELDS,
                "timeout": _field("Timeout", "Seconds that a call may take", "number", 10),
            },
        },
        {
            "connection-type": "horovod",
            "hook-class-name": "airflow_hops.hooks.ranks.RanksHook",
            "hook-name": "Horovod hosts",
            "ui-field-behaviour": {
                "hidden-fields": ["schema", "password", "host"],
                "relabeling": {"login": "SSH user", "port": "SSH port"},
                "placeholders": {"login": "who runs the worker", "port": "22"},
            },
            "conn-fields": {
                "hosts": _field(
                    "Hosts", "Hosts and the ranks that each takes: gpu-1:4,gpu-2:4. Empty: the worker's own machine"
                ),
                "key_file": _field("Key file", "Path on the worker of the private key; empty: what ssh finds itself"),
                "config_file": _field(
                    "SSH config file", "Path on the worker, in the place of ~/.ssh/config; empty: the user's own"
                ),
                "python": _field(
                    "Python of the hosts",
                    "Path of bin/python of the runtime environment on each host; empty: the same as on the worker",
                ),
                "address": _field(
                    "Address of the worker", "By which the hosts reach it; empty: from which its packets to a host go"
                ),
                "slots": _field(
                    "Slots of this machine",
                    "How many ranks the worker's own machine takes, where no hosts are given; empty: all that it has",
                    "integer",
                ),
            },
        },
    ],
    "task-decorators": [
        {"name": "hops", "class-name": "airflow_hops.decorators.hops.hops_task"},
        {"name": "hops_schema", "class-name": "airflow_hops.decorators.schema.schema_task"},
        {"name": "horovod", "class-name": "airflow_hops.decorators.train.horovod_task"},
        {"name": "torch", "class-name": "airflow_hops.decorators.train.torch_task"},
        {"name": "train", "class-name": "airflow_hops.decorators.train.train_task"},
        {"name": "hops_statistics", "class-name": "airflow_hops.decorators.statistics.statistics_task"},
    ],
    "cli": ["airflow_hops.cli.definition.get_hops_cli_commands"],
    "config": {
        "hops": {
            "description": "Defaults of airflow-hops, for connections that leave a field empty.",
            "options": {
                "store": _option(
                    "URI of the artifact store. Empty: the folder ``hops`` in AIRFLOW_HOME.",
                    "string",
                    "",
                    "s3://bucket/hops",
                ),
                "runtime": _option(
                    "Folder of the runtime environment. Empty: the folder ``hops-runtime`` in AIRFLOW_HOME, which is "
                    "where ``airflow hops runtime create`` makes it.",
                    "string",
                    "",
                    "/opt/hops-runtime",
                ),
                "tracking_uri": _option(
                    "MLflow tracking URI. Empty: SQLite in AIRFLOW_HOME.", "string", "", "http://mlflow:5000"
                ),
                "cache": _option(
                    "Whether a step is skipped when the same task has already made the same artifact from the same "
                    "code, parameters and inputs.",
                    "boolean",
                    "True",
                ),
                "warm_start": _option(
                    "Whether local steps are forked from a warm process that has TensorFlow and TFDV imported already.",
                    "boolean",
                    "True",
                ),
                "orphan_timeout": _option(
                    "Seconds after which a training that has outlived its worker ends by itself, unless a retry has "
                    "gone on with it. More than Airflow takes to see that the worker is gone ([scheduler] "
                    "task_instance_heartbeat_timeout), and the task's retry_delay.",
                    "float",
                    "1800",
                ),
            },
        }
    },
}
