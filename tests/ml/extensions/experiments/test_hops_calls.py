"""Every public call of hops-util-py 1 and 2 works, or says what to use instead."""

from __future__ import annotations

import importlib
import inspect
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_hops.core.errors import BadInput


def taking(arguments: str, names: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), arguments)


# Names and arguments of hops-util-py 1.4.0.3 and 2.5.0.2 together, read from their source distributions.
EXPERIMENT = "train_fn map_fun name local_logdir description"
CALLS = {
    "devices": {"get_num_gpus": ""},
    "experiment": {
        "differential_evolution": f"{EXPERIMENT} objective_function boundary_dict direction generations population "
        "mutation crossover optimization_key",
        "grid_search": f"{EXPERIMENT} grid_dict direction optimization_key",
        "launch": f"{EXPERIMENT} args_dict metric_key",
        "mirrored": f"{EXPERIMENT} evaluator metric_key",
        "parameter_server": f"{EXPERIMENT} evaluator metric_key",
        "random_search": f"{EXPERIMENT} boundary_dict direction samples optimization_key",
    },
    "hdfs": {
        "abs_path": "hdfs_path",
        "access": "hdfs_path mode project",
        "add_module": "hdfs_path project",
        "capacity": "",
        "chmod": "hdfs_path mode project",
        "chown": "hdfs_path user group project",
        "close": "",
        "copy_to_hdfs": "local_path relative_hdfs_path overwrite project",
        "copy_to_local": "hdfs_path local_path overwrite project",
        "cp": "src_hdfs_path dest_hdfs_path overwrite",
        "delete": "hdfs_path recursive",
        "dump": "data hdfs_path",
        "exists": "hdfs_path project",
        "get": "",
        "get_fs": "",
        "get_plain_path": "abs_path",
        "get_webhdfs_host": "",
        "get_webhdfs_port": "",
        "glob": "hdfs_path recursive project",
        "is_tls_enabled": "",
        "isdir": "hdfs_path project",
        "isfile": "hdfs_path project",
        "load": "hdfs_path",
        "ls": "hdfs_path recursive exclude_nn_addr",
        "lsl": "hdfs_path recursive project",
        "mkdir": "hdfs_path project",
        "move": "src dest",
        "open_file": "hdfs_path project flags buff_size",
        "project_id": "",
        "project_name": "",
        "project_path": "project exclude_nn_addr",
        "project_user": "",
        "rename": "src dest",
        "rmr": "hdfs_path project",
        "stat": "hdfs_path",
    },
    "tensorboard": taking("", "interactive_debugger logdir non_interactive_debugger"),
    "util": taking(
        "",
        "attach_jupyter_configuration_to_notebook connect get_flink_conf_dir get_flink_lib_dir "
        "get_hadoop_classpath_glob get_hadoop_home get_job_name get_jwt get_redshift_username_password "
        "get_requests_verify get_secret http num_executors num_param_servers parse_redhift_jdbc_url send_request "
        "set_auth_header write_b64_cert_to_bytes",
    ),
}
OTHER_MODULES = (
    "beam constants credentials_provider dataset elasticsearch exceptions featurestore hive jobs kafka model "
    "numpy_helper pandas_helper project secret service_discovery serving tls user xattr"
)
OTHER_NAMES = {"map_fun": "train_fn", "objective_function": "train_fn", "grid_dict": "args_dict"}


def surface() -> list[str]:
    """Returns the calls that neither exist with all of their arguments nor say what to use instead."""
    from airflow_hops.extensions.experiments.hops.absent import Absent

    wrong = []
    for module, calls in CALLS.items():
        imported = importlib.import_module(f"hops.{module}")
        for name, arguments in calls.items():
            call = getattr(imported, name, None)
            if call is None or not (isinstance(call, Absent) or accepts(call, arguments.split())):
                wrong.append(f"{module}.{name}({arguments})")
    for module in OTHER_MODULES.split():
        imported = importlib.import_module(f"hops.{module}")
        with pytest.raises(BadInput, match=rf"hops\.{module}\.get .* use instead: \w"):
            imported.get("x", version=1)
    return wrong


def accepts(function: Callable[..., Any], arguments: list[str]) -> bool:
    try:
        inspect.signature(function).bind(**{OTHER_NAMES.get(name, name): None for name in arguments})
    except TypeError:
        return False
    return True


def test_public_calls_exist_or_name_the_alternative(as_step: Any) -> None:
    assert as_step(surface) == []
    page = (Path(__file__).parents[4] / "docs/extensions/experiments.md").read_text()
    assert [name for name in OTHER_MODULES.split() if f"`{name}`" not in page] == []


def notebooks() -> Any:
    """Calls what the notebooks of hops-examples on files and searches call, in their order."""
    import pandas as pd
    from hops import experiment, featurestore, hdfs, model, pandas_helper, tensorboard  # noqa: F401
    from hops.model import Metric

    os.chdir(tempfile.mkdtemp())
    hdfs.log(f"{hdfs.project_user()} {hdfs.project_name()}")
    hdfs.dump("read me", hdfs.project_path() + "Logs/README.md")
    Path("test.txt").write_text("test")
    hdfs.copy_to_hdfs("test.txt", "Resources", overwrite=True)
    hdfs.copy_to_local("Resources/test.txt", overwrite=True)
    hdfs.cp("Resources/test.txt", "Logs/")
    hdfs.mkdir("Logs/test_dir")
    listed = [(Path(each["name"]).name, each["kind"], each["size"]) for each in hdfs.lsl("Logs/")]
    hdfs.rmr("Logs/test_dir")
    assert hdfs.ls("Logs/") == [hdfs.abs_path(f"Logs/{name}") for name in ("README.md", "test.txt")]
    assert hdfs.glob("Logs/*.md") == [hdfs.abs_path("Logs/README.md")] and hdfs.stat("Logs/README.md").st_size == 7
    assert hdfs.get_plain_path("hdfs://10.0.2.15:8020/Projects/demo/Models/") == "/Projects/demo/Models/"
    hdfs.dump("answer = 42", "Resources/my_module.py")
    hdfs.add_module("Resources/my_module.py")
    answer = importlib.import_module("my_module").answer

    hdfs.dump("Age,Sex\n39,Male\n50,é\n", "Resources/a.csv")
    with hdfs.open_file("Resources/a.csv") as file:
        assert pd.read_csv(file).to_dict("list") == {"Age": [39, 50], "Sex": ["Male", "é"]}

    def wrapper(lr: float = 0.5) -> dict[str, float]:
        Path(tensorboard.logdir() + "weights.txt").write_text(str(lr))
        return {"accuracy": 1 - lr, "loss": lr}

    best = experiment.grid_search(wrapper, grid_dict={"lr": [0.1, 0.2]}, optimization_key="accuracy")
    single = experiment.mirrored(map_fun=wrapper, metric_key="loss", evaluator=False)
    with pytest.raises(BadInput, match=r"hops\.model\.get_best_model .* DeployModelOperator"):
        model.get_best_model("mnist", "accuracy", "max")
    with pytest.raises(BadInput, match=r"hops\.model\.Metric"):
        Metric.MAX  # noqa: B018
    with pytest.raises(BadInput, match="evaluator is True"):
        experiment.parameter_server(wrapper, evaluator=True)
    with pytest.raises(BadInput, match=r"get_fs\(\)\.walk .* such as stat and lsl"):
        hdfs.get_fs().walk("/")
    return listed, answer, best, single


def test_calls_of_the_notebooks(as_step: Any) -> None:
    listed, answer, (path, parameters, returned), (single, metrics) = as_step(notebooks)
    assert listed == [("README.md", "file", 7), ("test.txt", "file", 4), ("test_dir", "directory", listed[2][2])]
    assert answer == 42 and parameters == {"lr": 0.1} and returned == {"accuracy": 0.9, "loss": 0.1}
    assert (Path(path) / "lr=0.1/weights.txt").read_text() == "0.1"
    assert metrics == {"accuracy": 0.5, "loss": 0.5}
    assert '"metric": 0.5' in (Path(single) / "experiment.json").read_text()
