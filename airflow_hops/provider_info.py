"""Provider information as data, to which extensions add theirs."""

from __future__ import annotations

from copy import deepcopy
from typing import Any
from urllib.parse import SplitResult

from airflow_hops.core.extensions import MODEL_SERVERS, extensions
from airflow_hops.core.extensions import PROVIDER_INFO as ADDED


def field(label: str, description: str, type_: str = "string", default: object = None) -> dict[str, Any]:
    """Returns the description of a connection's field."""
    schema: dict[str, Any] = {"type": [type_, "null"]}
    if default is not None:
        schema["default"] = default
    return {"label": label, "description": description, "schema": schema}


def option(description: str, type_: str, default: str | None, example: str | None = None) -> dict[str, Any]:
    """Returns the description of an option in the configuration's section ``hops``."""
    return {"description": description, "version_added": "0.1.0", "type": type_, "example": example, "default": default}


def check_asset_uri(parts: SplitResult) -> SplitResult:
    """Checks the URI of an asset: of a task, ``hops://DAG/TASK``, or of a model, ``hops://_models/MODEL``.

    Raises:
        ValueError: it is another one.
    """
    if not parts.netloc or parts.path.count("/") != 1 or parts.path == "/":
        raise ValueError(
            f"{parts.geturl()!r}: expected hops://DAG/TASK, the asset of a task's artifacts, or hops://_models/MODEL"
        )
    return parts


_PREDICTION_TOKEN = {
    "label": "Prediction token",
    "description": "A token of the server's --prediction_token_file. Empty: the control token",
    "schema": {"type": ["string", "null"], "format": "password"},
}
_TLS_FIELDS = {
    "ca_file": field(
        "CA file",
        "PEM file of the CA that signed the server's certificate; turns on TLS for gRPC. "
        "The path must exist on worker, triggerer and API server",
    ),
    "cert_file": field("Client certificate", "PEM file, for a server that verifies its clients. Empty: none"),
    "key_file": field("Client key", "PEM file of the private key of the client certificate. Empty: none"),
    "rest_tls": field(
        "REST by TLS", "Whether the REST port also uses TLS (--rest_api_enable_ssl). Empty: false", "boolean"
    ),
}

_SERVER_FIELDS = {
    "kind": {
        "label": "Model server kind",
        "description": "bundled: the model server of this package, also in front of other servers; "
        "tensorflow_model_server: TensorFlow Serving, which cannot split traffic",
        "schema": {"type": ["string", "null"], "default": "bundled"},
    },
    "rest_port": field(
        "Model server REST port", "The server's --rest_api_port; counts are read there. Empty: none", "integer"
    ),
    "base_path": field("Model base path", "Folder for model versions: absolute path, or URI. Empty: none"),
    "server_base_path": field(
        "Model base path of the server",
        "The path of the same folder inside the server's container or host. Empty: the same path",
    ),
    "config_file": field(
        "Model config file",
        "The server's --model_config_file, if the worker shares it. Empty: the config is sent by RPC",
    ),
    "traffic_file": field(
        "Traffic config file", "The server's --traffic_config_file, if the worker shares it. Empty: set by RPC"
    ),
    "capture_path": field(
        "Capture path",
        "The server's --capture_base_path, which skew and rollout read: absolute path, or URI. Empty: none",
    ),
    "prediction_token": _PREDICTION_TOKEN,
    **_TLS_FIELDS,
    "storage_options": field(
        "Model server storage options",
        "JSON object for fsspec, for base path and capture path. Empty: the artifact store's options, "
        "if both are the same kind of storage",
    ),
    "timeout": field("Model server timeout", "Seconds after which a call fails", "number", 10),
}
PROVIDER_INFO: dict[str, Any] = {
    "package-name": "airflow-hops",
    "name": "Hops",
    "description": "End-to-end machine-learning pipelines: TFDV, Spark, Horovod, MLflow, TensorFlow Serving's API.",
    "integrations": [
        {"integration-name": "Hops", "external-doc-url": "https://pypi.org/project/airflow-hops/", "tags": ["software"]}
    ],
    "asset-uris": [{"schemes": ["hops"], "handler": "airflow_hops.provider_info.check_asset_uri"}],
    "operators": [{"integration-name": "Hops", "python-modules": ["airflow_hops.operators"]}],
    "sensors": [{"integration-name": "Hops", "python-modules": ["airflow_hops.sensors.model_version"]}],
    "triggers": [
        {
            "integration-name": "Hops",
            "python-modules": [
                "airflow_hops.triggers.model_version",
                "airflow_hops.triggers.rollout",
            ],
        }
    ],
    "hooks": [
        {
            "integration-name": "Hops",
            "python-modules": [
                "airflow_hops.runner.runtime",
                "airflow_hops.hooks.model_server",
            ],
        }
    ],
    "connection-types": [
        {
            "connection-type": "hops",
            "hook-class-name": "airflow_hops.hooks.hops.HopsHook",
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
                "store": field(
                    "Artifact store",
                    "Absolute path, or a URI that fsspec opens: file://, s3://, gs://, hdfs://. Empty: [hops] store",
                ),
                "storage_conn_id": field(
                    "Storage connection",
                    "Connection of type aws, google_cloud_platform, wasb or webhdfs with the store's credentials and "
                    "address, such as aws_default; storage_options take precedence. Empty: none",
                ),
                "storage_options": field(
                    "Storage options",
                    'JSON object for fsspec, such as {"endpoint_url": "http://minio:9000"}. Empty: none',
                ),
                "runtime": field(
                    "Runtime environment",
                    "Absolute path of the folder that airflow hops runtime create made, the same on every worker, "
                    "or the name of a named environment beside the configured one. Empty: [hops] runtime",
                ),
                "tracking_uri": field(
                    "MLflow tracking URI",
                    "Runs and the model registry: an MLflow server, or sqlite:////absolute/path. "
                    "Empty: [hops] tracking_uri",
                ),
                "spark_conn_id": field(
                    "Spark connection",
                    "Connection of type spark, on whose master the steps on Spark run. Empty: spark_default, or this "
                    "machine if there is none",
                ),
                "ranks_conn_id": field(
                    "Connection of the ranks",
                    "Connection of type spark (executors), or horovod or kubernetes of the extensions, where the ranks "
                    "of trainings run. Empty: the machine of the step",
                ),
                "launcher": field(
                    "Launcher",
                    "Registered launcher of the steps that run on the worker otherwise. Empty: local",
                ),
                "launcher_options": field(
                    "Launcher options",
                    'JSON object with the launcher\'s arguments, such as {"image": "…"}. Empty: none',
                ),
                **{f"serving_{name}": field for name, field in _SERVER_FIELDS.items()},
            },
        },
    ],
    "task-decorators": [
        {"name": "hops", "class-name": "airflow_hops.decorators.hops.hops_task"},
        {"name": "hops_schema", "class-name": "airflow_hops.decorators.hops.schema_task"},
        {"name": "horovod", "class-name": "airflow_hops.decorators.training.horovod_task"},
        {"name": "train", "class-name": "airflow_hops.decorators.training.train_task"},
        {"name": "hops_statistics", "class-name": "airflow_hops.decorators.hops.statistics_task"},
    ],
    "cli": ["airflow_hops.cli.definition.get_hops_cli_commands"],
    "config": {
        "hops": {
            "description": "Defaults of airflow-hops, for connections that leave a field empty.",
            "options": {
                "store": option(
                    "URI of the artifact store. Empty: the folder ``hops`` in AIRFLOW_HOME.",
                    "string",
                    "",
                    "s3://bucket/hops",
                ),
                "runtime": option(
                    "Folder of the runtime environment. Empty: the folder ``hops-runtime`` in AIRFLOW_HOME, which is "
                    "where ``airflow hops runtime create`` makes it.",
                    "string",
                    "",
                    "/opt/hops-runtime",
                ),
                "tracking_uri": option(
                    "MLflow tracking URI. Empty: SQLite in AIRFLOW_HOME.", "string", "", "http://mlflow:5000"
                ),
                "cache": option(
                    "Whether a step is skipped when the same task has already made the same artifact from the same "
                    "code, parameters and inputs. An operator's ``cache`` overrides it.",
                    "boolean",
                    "True",
                ),
                "warm_start": option(
                    "Whether local steps are forked from a warm process that has TensorFlow and TFDV imported already.",
                    "boolean",
                    "True",
                ),
                "orphan_timeout": option(
                    "Seconds after which a training that has outlived its worker ends by itself, unless a retry has "
                    "taken it over. Set it to more than the sum of [scheduler] task_instance_heartbeat_timeout (300), "
                    "after which Airflow sees that the worker is gone, and the task's retry_delay (300).",
                    "float",
                    "1800",
                ),
            },
        }
    },
}


def provider_info() -> dict[str, Any]:
    """Returns the provider information of the trunk and of all extensions.

    An extension gives more members of the lists, ``options`` of the configuration's section ``hops``, and
    ``connection-fields`` by connection type.
    """
    info = deepcopy(PROVIDER_INFO)
    types = {each["connection-type"]: each for each in info["connection-types"]}
    types["hops"]["conn-fields"]["serving_kind"]["schema"]["enum"] = sorted(extensions(MODEL_SERVERS))
    for extension in extensions(ADDED).values():
        for key, value in extension.load().items():
            if key == "options":
                info["config"]["hops"]["options"].update(value)
            elif key == "connection-fields":
                for type_, fields in value.items():
                    types[type_]["conn-fields"].update(fields)
            else:
                info[key].extend(value)
    return info
