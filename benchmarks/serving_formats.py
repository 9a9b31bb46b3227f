"""Boosted trees of LightGBM, served as ONNX: rates and latencies against LightGBM in process and behind other servers.

Clients are a process of their own. See ``README.md`` for what each figure means.
"""

from __future__ import annotations

import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path[0] = str(REPOSITORY)  # not this folder, whose statistics.py is not the standard library's

import argparse  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import shutil  # noqa: E402
import subprocess  # noqa: E402
from dataclasses import asdict  # noqa: E402
from typing import Any  # noqa: E402

from rich.console import Console  # noqa: E402

from airflow_hops.runner.environments.runtime import create_environment  # noqa: E402
from benchmarks.measurement import named_environments  # noqa: E402
from benchmarks.measurement.serving_targets import (  # noqa: E402
    PEERS,
    BentoML,
    Clients,
    Measured,
    MLServer,
    ModelServer,
    Target,
)

WORK = REPOSITORY / ".hops" / "benchmarks" / "serving_formats"
MODEL = "matrix"
MODELS = (MODEL, "columns")
"""By what requests hold: one tensor, as the peers have it, or a column for each feature."""
ROWS = (1, 64)
CLIENTS = (1, 16)


class LightGBMOfMLServer(MLServer):
    """MLServer's own runtime for LightGBM."""

    def __init__(self) -> None:
        super().__init__(WORK / "run", WORK)
        settings = {"http_port": self._port, "host": "127.0.0.1", "parallel_workers": 0, "metrics_endpoint": None}
        model = {
            "name": MODEL,
            "implementation": "mlserver_lightgbm.LightGBMModel",
            "parameters": {"uri": str(WORK / "model.bst")},
        }
        folder = WORK / "run" / "mlserver"
        (folder / MODEL).mkdir(parents=True, exist_ok=True)
        (folder / "settings.json").write_text(json.dumps({**settings, "grpc_port": self._port + 1, "debug": False}))
        (folder / MODEL / "model-settings.json").write_text(json.dumps(model))
        self._command = [str(PEERS / "trees" / "bin" / "mlserver"), "start", str(folder)]
        self._environment["OMP_NUM_THREADS"] = "1"  # it would share 100 trees out to all cores, which takes longer


class LightGBMOfBentoML(BentoML):
    """A BentoML service, as its documentation has one for LightGBM."""

    def __init__(self) -> None:
        super().__init__(WORK / "run", WORK)
        program = str(PEERS / "trees" / "bin" / "bentoml")
        service = "benchmarks.peers.trees_bentoml_app:Trees"
        self._command = [program, "serve", service, *self._command[3:]]
        self._environment["BENCHMARK_MODEL"] = str(WORK / "model.bst")

    def order(self, bodies: Path, model: str, rows: int) -> dict[str, Any]:
        """The rows as lists."""
        return {"url": f"http://127.0.0.1:{self._port}/{model}", "body": str(bodies / f"{model}-{rows}.rows.json")}


def set_up(given: argparse.Namespace, console: Console) -> dict[str, dict[str, float]]:
    """Makes environments, trains and exports; returns the rates in process."""
    python = named_environments.make(named_environments.TREES, console.print)
    WORK.mkdir(parents=True, exist_ok=True)
    if not (WORK / "written").exists():
        shutil.rmtree(WORK)
        WORK.mkdir()
    if given.peers:
        pins = REPOSITORY / "benchmarks" / "peers" / "trees.txt"
        create_environment(PEERS / "trees", pins, uv=named_environments.UV, say=console.print)
    command = [str(python), "-m", "benchmarks.measurement.serving_trees", str(WORK), str(given.seconds)]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    entries = " ".join(
        f'config {{ name: "{model}" base_path: "{WORK}/models/{model}" model_platform: "onnx" }}' for model in MODELS
    )
    (WORK / "models.config").write_text(f"model_config_list {{ {entries} }}\n")
    found: dict[str, dict[str, float]] = json.loads(done.stdout.splitlines()[-1])
    return found


def ask(
    clients: Clients, target: Target, name: str, given: argparse.Namespace, console: Console, model: str = MODEL
) -> dict[str, Measured]:
    """Both sizes of requests, each by one client and by sixteen."""
    found = {}
    for rows in ROWS:
        for number in CLIENTS:
            m = found[f"{name}-{rows}-{number}"] = clients.measure(target, WORK, model, rows, number, given.seconds)
            console.print(
                f"{name}: {rows} rows, {number} clients: {m.rate:,.0f} requests/s ({m.per_core:,.0f} a CPU second), "
                f"p50 {m.p50_ms:.2f} ms, p99 {m.p99_ms:.2f} ms, {m.errors} errors"
            )
    return found


def main() -> None:
    """Measures, and prints a line of JSON last."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement (default 2)")
    parser.add_argument("--no-peers", dest="peers", action="store_false", help="without MLServer and BentoML")
    given, console = parser.parse_args(), Console(width=160)
    in_process = set_up(given, console)
    for rows, rates in in_process.items():
        told = ", ".join(f"{way} {rate:,.0f}" for way, rate in rates.items())
        console.print(f"in process: {rows} rows: calls a CPU second: {told}")
    found: dict[str, Measured] = {}
    with Clients() as clients:
        with ModelServer("trees", WORK / "run", WORK / "models.config", tensorflow_intra_op_parallelism=1) as ours:
            for model in MODELS:
                found |= ask(clients, ours, f"grpc-{model}", given, console, model)
                found |= ask(clients, ours.over_rest(), f"rest-{model}", given, console, model)
        for peer in (LightGBMOfMLServer(), LightGBMOfBentoML()) if given.peers else ():
            with peer:
                found |= ask(clients, peer, peer.name, given, console)
    ratios = {}
    for rows in ROWS:
        for number in CLIENTS:
            case = f"{rows}-{number}"
            limit = in_process[str(rows)]["lightgbm"]
            for way in ("grpc-matrix", "rest-matrix", "grpc-columns", "rest-columns"):
                ratios[f"{way}_{case}_of_lightgbm_in_process_per_core"] = found[f"{way}-{case}"].per_core / limit
                for name in ("mlserver", "bentoml") if given.peers else ():
                    ours_found, theirs = found[f"{way}-{case}"], found[f"{name}-{case}"]
                    ratios[f"{way}_{case}_times_rate_of_{name}"] = ours_found.rate / theirs.rate
                    ratios[f"{way}_{case}_times_{name}_per_core"] = ours_found.per_core / theirs.per_core
    ratios = {name: round(ratio, 3) for name, ratio in ratios.items()}
    for name, ratio in ratios.items():
        console.print(f"{name}: {ratio}")
    figures = {name: {k: round(v, 3) for k, v in asdict(m).items()} for name, m in found.items()}
    document = {"in_process": in_process, "served": figures}
    print(json.dumps({"benchmark": "serving_formats", "ratios": ratios, "figures": document}))


if __name__ == "__main__":
    main()
