"""Calls of hops-util-py that this package does not have, each with the one to use instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from airflow_hops.core.errors import BadInput

_CONNECTIONS = "Airflow's connections and variables (airflow.sdk.BaseHook.get_connection, Variable.get)"
_RIGHTS = "the rights of the store's own file system, which its owner sets; a step's user has those of its connection"

MODULES = {
    "beam": "Beam's own runners",
    "constants": "no constants: Hopsworks' services are not here",
    "credentials_provider": _CONNECTIONS,
    "dataset": "hops.hdfs for files of the store, airflow_hops.extensions.sharing to exchange data sets",
    "elasticsearch": "Airflow's remote logging, and the pages of the web UI",
    "exceptions": "BadInput and HopsError of airflow_hops.core.artifacts.artifact",
    "featurestore": "Feast, by the operators of airflow_hops.extensions.feature_store",
    "hive": "tables as sources (airflow_hops.extensions.tables), or Airflow's provider apache-hive",
    "jobs": "tasks and DAGs of Airflow (airflow.providers.standard.operators.trigger_dagrun.TriggerDagRunOperator)",
    "kafka": "topics as sources (airflow_hops.extensions.streams), or Airflow's provider apache-kafka",
    "numpy_helper": "hdfs.open_file with NumPy's functions, as numpy.load(file), or hdfs.copy_to_local",
    "pandas_helper": "hdfs.open_file with pandas' functions, as pandas.read_csv(file)",
    "model": "TrainOperator or ImportModelOperator, then DeployModelOperator, which registers the version",
    "project": "the environment variable HOPS_STORE, or the store of the connection",
    "secret": _CONNECTIONS,
    "service_discovery": _CONNECTIONS,
    "serving": "DeployModelOperator, and the model server's REST API or gRPC for requests",
    "tls": _CONNECTIONS,
    "user": "users of Airflow's auth manager",
    "xattr": "hops.hdfs.dump of a JSON file beside the data; artifacts have properties in their manifest",
}
"""Modules that are not here, each with what to use instead."""

CALLS = {
    "experiment": {
        "begin": "experiment.launch with a function",
        "end": "experiment.launch with a function",
        "evolutionary_search": "experiment.differential_evolution",
    },
    "hdfs": {
        "access": "hdfs.exists; " + _RIGHTS,
        "capacity": "the tools of the store's file system",
        "chmod": _RIGHTS,
        "chown": _RIGHTS,
        "get_webhdfs_host": "hdfs.open_file, which needs no WebHDFS",
        "get_webhdfs_port": "hdfs.open_file, which needs no WebHDFS",
        "is_tls_enabled": "the extra of the store's connection",
        "project_id": "hdfs.project_name",
    },
    "tensorboard": dict.fromkeys(("interactive_debugger", "non_interactive_debugger"), "TensorBoard's debugger V2"),
    "util": dict.fromkeys(("connect", "get_secret", "get_jwt", "get_redshift_username_password"), _CONNECTIONS)
    | dict.fromkeys(("http", "send_request", "set_auth_header", "get_requests_verify"), "a client such as requests")
    | dict.fromkeys(("num_executors", "num_param_servers"), "the argument np of an operator, or hvd.size()")
    | dict.fromkeys(
        (
            "attach_jupyter_configuration_to_notebook",
            "get_flink_conf_dir",
            "get_flink_lib_dir",
            "get_hadoop_classpath_glob",
            "get_hadoop_home",
            "get_job_name",
            "parse_redhift_jdbc_url",
            "write_b64_cert_to_bytes",
        ),
        "nothing: these belong to Hopsworks' own machines",
    ),
}
"""Calls that modules which are here lack, each with what to use instead."""


class Absent:
    """A call, class or constant of hops-util-py; calling it, or reading an attribute of it, raises ``BadInput``."""

    def __init__(self, name: str, instead: str) -> None:
        self._name, self._instead = name, instead

    def __call__(self, *args: object, **kwargs: object) -> NoReturn:  # noqa: D102
        raise BadInput(f"{self._name} of hops-util-py is not available here; use instead: {self._instead}")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return self()


def calls_of(module: str) -> Callable[[str], Absent]:
    """Returns the ``__getattr__`` of a module that is not here, or lacks some of its calls."""

    def absent(name: str) -> Absent:
        instead = MODULES.get(module) or CALLS[module].get(name)
        if name.startswith("_") or instead is None:
            raise AttributeError(f"module 'hops.{module}' has no attribute {name!r}")
        return Absent(f"hops.{module}.{name}", instead)

    return absent
