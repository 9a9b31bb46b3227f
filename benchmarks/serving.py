"""The model server: rates and latencies against an echo, the model in process, and other servers.

Clients are a process of their own. See ``README.md`` for what each figure means.
"""

from __future__ import annotations

import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path[0] = str(REPOSITORY)  # not this folder, whose statistics.py is not the standard library's

import argparse  # noqa: E402
import contextlib  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import shutil  # noqa: E402
import statistics  # noqa: E402
import subprocess  # noqa: E402
import time  # noqa: E402
from collections.abc import Mapping  # noqa: E402
from dataclasses import asdict  # noqa: E402
from typing import Any  # noqa: E402

from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

from airflow_hops.runner.environments.runtime import create_environment  # noqa: E402
from benchmarks.measurement.serving_targets import (  # noqa: E402
    PEERS,
    RUNTIME,
    BentoML,
    CapturingInTurns,
    Clients,
    Echo,
    Measured,
    MLServer,
    ModelServer,
    RayServe,
    Target,
    call_in_process,
)

WORK = REPOSITORY / ".hops" / "benchmarks" / "serving"
MODELS = ("mlp", "flights")
ROWS = (1, 64)
CLIENTS = (1, 16, 64)
RELOADS = 100
SWITCHES_A_TURN = 5

Found = dict[tuple[str, str, int, int], Measured]
"""By who was asked, model, rows and clients."""


def set_up(given: argparse.Namespace, console: Console) -> None:
    """Writes models, requests and config files; installs the peers."""
    if not (WORK / "written").exists():
        shutil.rmtree(WORK, ignore_errors=True)
        WORK.mkdir(parents=True)
        environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
        command = [str(RUNTIME), "-m", "benchmarks.measurement.serving_models", str(WORK)]
        subprocess.run(command, cwd=REPOSITORY, env=environment, check=True, capture_output=True)
        (WORK / "written").touch()
    entries = [
        f'config {{ name: "{model}" base_path: "{WORK}/models/{model}" model_platform: "tensorflow" '
        "model_version_policy { specific { versions: 1 versions: 2 } } }"
        for model in MODELS
    ]
    (WORK / "models.config").write_text(f"model_config_list {{ {' '.join(entries)} }}\n")
    (WORK / "split.json").write_text(json.dumps({"models": {model: {"1": 50, "2": 50} for model in MODELS}}))
    (WORK / "batching.config").write_text(
        "max_batch_size { value: 256 } batch_timeout_micros { value: 0 } num_batch_threads { value: 2 } "
        "max_enqueued_batches { value: 1000 }\n"
    )
    for peer in ("mlserver", "bentoml", "ray_serve") if given.peers else ():
        pins = REPOSITORY / "benchmarks" / "peers" / f"{peer}.txt"
        uv = str(REPOSITORY / ".uv" / "bin" / "uv")
        create_environment(PEERS / peer, pins, uv=uv, say=console.print)


def server(name: str, *, rest: bool = False, **flags: Any) -> ModelServer:
    """The bundled server, with its own defaults but for what is said."""
    return ModelServer(name, WORK / "run", WORK / "models.config", rest=rest, **flags)


def echo_server(processes: int = 1) -> Echo:
    """The echo with as many threads as the server has."""
    return Echo(WORK / "run", WORK / "answers", max(8, 4 * (os.cpu_count() or 1)), processes)


def ask(clients: Clients, target: Target, name: str, given: argparse.Namespace, found: Found, console: Console) -> None:
    """All models, rows and numbers of clients."""
    for model in MODELS:
        for rows in ROWS:
            for number in CLIENTS:
                m = found[name, model, rows, number] = clients.measure(target, WORK, model, rows, number, given.seconds)
                console.print(
                    f"{name}: {model}, {rows} rows, {number} clients: {m.rate:,.0f} requests/s "
                    f"({m.per_core:,.0f} a CPU second), p50 {m.p50_ms:.2f} ms, p99 {m.p99_ms:.2f} ms"
                )


def measure_all(clients: Clients, given: argparse.Namespace, console: Console) -> Found:
    """The limits, the server in its ways, the peers."""
    found: Found = {}
    with echo_server() as echo:
        ask(clients, echo, "echo", given, found, console)
    with server("plain") as plain:
        ask(clients, plain, "grpc", given, found, console)
        ask(clients, plain.over_rest(), "rest", given, found, console)
    batching = {"enable_batching": "true", "batching_parameters_file": WORK / "batching.config"}
    with server("batching", **batching) as batched:
        ask(clients, batched, "grpc_batching", given, found, console)
        ask(clients, batched.over_rest(), "rest_batching", given, found, console)
    if given.peers:
        for peer in (MLServer, BentoML, RayServe):
            with peer(WORK / "run", WORK / "models") as target:
                ask(clients, target, target.name, given, found, console)
    return found


def measure_in_turns(
    clients: Clients, turns: int, seconds: float, console: Console, targets: Mapping[str, Target], model: str, rows: int
) -> dict[str, dict[str, Any]]:
    """Targets one after the other, again and again: median ratios to the first, of rates and of rates a CPU second."""
    first = next(iter(targets))
    measured = []
    for turn_number in range(turns):
        # There and back: who comes first has it better on a machine that others share.
        order = list(targets) if turn_number % 2 == 0 else list(reversed(targets))
        measured.append({name: clients.measure(targets[name], WORK, model, rows, 16, seconds) for name in order})
    found = {}
    for name in targets:
        rates = [turn[name].rate / turn[first].rate for turn in measured]
        cores = [turn[name].per_core / turn[first].per_core for turn in measured]
        found[name] = {
            "rate": round(statistics.median(rates), 3),
            "per_core": round(statistics.median(cores), 3),
            "requests_a_second": round(statistics.median(turn[name].rate for turn in measured)),
            "cpu_us": round(statistics.median(1e6 / turn[name].per_core for turn in measured)),
            "every_per_core": [round(core, 3) for core in cores],
        }
        told = ", ".join(f"{key} {value}" for key, value in found[name].items() if key != "every_per_core")
        console.print(f"{model}, {rows} rows, in turns: {name} over {first}: {told}")
    return found


def measure_limits(clients: Clients, given: argparse.Namespace, console: Console) -> dict[str, Any]:
    """The server with its defaults, and set for small models, against an echo of as many threads."""
    threads = (os.cpu_count() or 1) + 1
    small = {"tensorflow_intra_op_parallelism": 1, "grpc_max_threads": threads}
    found = {}
    with (
        echo_server() as echo,
        server("default") as plain,
        server("small", **small) as few,
    ):
        targets = {"echo": echo, "default": plain, "small": few}
        for model in MODELS:
            for rows in ROWS:
                case = f"{model}-{rows}"
                found[case] = measure_in_turns(clients, given.turns, given.seconds, console, targets, model, rows)
    return found


def measure_switch(clients: Clients, given: argparse.Namespace, console: Console, **flags: Any) -> dict[str, Any]:
    """One thing switched on against off, in short turns: what changes on a shared machine changes for both."""
    turns, seconds = SWITCHES_A_TURN * given.turns, max(0.5, given.seconds / SWITCHES_A_TURN)
    with server("off") as off, server("on", **flags) as on:
        return measure_in_turns(clients, turns, seconds, console, {"off": off, "on": on}, "flights", 1)["on"]


def measure_workers(clients: Clients, given: argparse.Namespace, console: Console) -> dict[str, Any]:
    """A worker for each of so many cores, the clients on the others where there are any, against one on one core.

    The echo, in as many processes, says what of it is gRPC's and the machine's.
    """
    cores = sorted(os.sched_getaffinity(0))
    counts = [count for count in (1, 2, 4, 8, 16) if count <= len(cores)]
    measured: dict[str, dict[int, list[Measured]]] = {}
    with contextlib.ExitStack() as stack:
        servers = {
            count: stack.enter_context(server(f"workers{count}", workers=count, tensorflow_intra_op_parallelism=1))
            for count in counts
        }
        echoes = {count: stack.enter_context(echo_server(count)) for count in counts}
        for turn in range(given.turns):
            for count in counts if turn % 2 == 0 else reversed(counts):
                for program in (servers[count], echoes[count]):
                    program.pin(cores[:count])
                clients.pin(cores[count:] or cores)
                over_rest = servers[count].over_rest()
                for way, target, model, rows in (
                    ("echo", echoes[count], "flights", 1),
                    ("grpc", servers[count], "flights", 1),
                    ("rest", over_rest, "flights", 1),
                    ("large_json", over_rest, "mlp", 64),
                ):
                    found = clients.measure(target, WORK, model, rows, 16 * count, given.seconds)
                    measured.setdefault(way, {}).setdefault(count, []).append(found)
        clients.pin(cores)
    figures: dict[str, Any] = {}
    for way, by_count in measured.items():
        for count, turns in by_count.items():
            of_one = [turn.per_core / one.per_core for turn, one in zip(turns, by_count[1], strict=True)]
            figures[f"{way}_{count}"] = {
                "requests_a_second": round(statistics.median(turn.rate for turn in turns)),
                "cores_used": round(statistics.median(turn.rate / turn.per_core for turn in turns), 2),
                "cpu_us": round(statistics.median(1e6 / turn.per_core for turn in turns)),
                "of_linear_per_core": round(statistics.median(of_one), 3),
            }
            console.print(f"{way}, workers on {count} cores: {figures[f'{way}_{count}']}")
    return figures


def measure_capture(clients: Clients, given: argparse.Namespace, console: Console) -> dict[str, float]:
    """Capture in the server, off and on in turns, and what the process that writes takes on the same cores."""
    shutil.rmtree(WORK / "captured", ignore_errors=True)
    with CapturingInTurns("turns", WORK / "run", WORK / "models.config", capture_base_path=WORK / "captured") as target:
        clients.measure(target, WORK, "flights", 1, 16, 3.0)
        found = captured_in_turns(clients, target, "flights", 3 * given.turns * given.seconds)
    console.print(f"capture, on over off in one server: {', '.join(f'{name} {n}' for name, n in found.items())}")
    return found


def captured_in_turns(clients: Clients, target: CapturingInTurns, model: str, seconds: float) -> dict[str, float]:
    """Returns rates and CPU of a running server with capture on and off, and its writer's CPU for each request."""
    start_turns, writer_s = target.turns(), target.writer_cpu_s()
    clients.measure(target, WORK, model, 1, 16, seconds)
    end_turns, writer_s = target.turns(), target.writer_cpu_s() - writer_s
    ways = {way: {name: end_turns[way][name] - start_turns[way][name] for name in end_turns[way]} for way in end_turns}
    rates = {way: found["requests"] / found["seconds"] for way, found in ways.items()}
    cpu_us = {way: 1e6 * found["cpu_s"] / found["requests"] for way, found in ways.items()}
    writer_us = 1e6 * writer_s / ways["on"]["requests"]
    # While it is measured, the writer takes of both ways alike what half of the requests left it.
    writer_share = writer_us * rates["on"] / (1e6 * (os.cpu_count() or 1))
    found = {
        "rate": rates["on"] / rates["off"] * (1 - writer_share),
        "per_core": cpu_us["off"] / (cpu_us["on"] + writer_us),
        "rate_without_the_writer": rates["on"] / rates["off"],
        "requests_a_second": rates["on"],
        "cpu_us": cpu_us["on"],
        "cpu_us_without_capture": cpu_us["off"],
        "writer_cpu_us": writer_us,
    }
    return {name: round(number, 3) for name, number in found.items()}


def measure_reloads(console: Console) -> dict[str, float]:
    """Memory after so many new versions of a model, each of which takes the place of the one before."""
    base = WORK / "reloads"
    shutil.rmtree(base, ignore_errors=True)
    base.mkdir()
    (WORK / "reloads.config").write_text(f'model_config_list {{ config {{ name: "mlp" base_path: "{base}" }} }}\n')
    memory = {}
    shutil.copytree(WORK / "models" / "mlp" / "1", base / "1")
    flags = {"file_system_poll_wait_seconds": 0.05}
    with ModelServer("reloads", WORK / "run", WORK / "reloads.config", rest=True, **flags) as target:
        url = f"http://127.0.0.1:{target.ready['rest_api_port']}/v1/models/mlp"
        for version in range(2, RELOADS + 2):
            shutil.copytree(WORK / "models" / "mlp" / "1", WORK / "reloads.tmp")
            (WORK / "reloads.tmp").rename(base / str(version))
            _wait_for_alone(url, version)
            shutil.rmtree(base / str(version - 1))
            if version - 1 in (10, RELOADS // 2, RELOADS):
                memory[f"after_{version - 1}_mib"] = round(target.rss_mib(), 1)
                console.print(f"memory after {version - 1} reloads: {target.rss_mib():.0f} MiB")
    return memory


def _wait_for_alone(url: str, version: int) -> None:
    import urllib.request

    deadline_s = time.monotonic() + 60
    while time.monotonic() < deadline_s:
        with urllib.request.urlopen(url, timeout=10) as response:
            states = json.load(response)["model_version_status"]
        available = [int(state["version"]) for state in states if state["state"] == "AVAILABLE"]
        if available == [version]:
            return
        time.sleep(0.02)
    raise RuntimeError(f"version {version} did not take over: {states}")


def ratios_of(
    found: Found,
    in_process: Mapping[str, Mapping[str, Any]],
    limits: Mapping[str, Any],
    switches: Mapping[str, Any],
) -> dict[str, float]:
    """Above 1 is ahead of the peer; the limits' ratios are shares of the limit."""
    ratios: dict[str, float] = {}
    for case, ways in limits.items():
        model, _, rows = case.partition("-")
        for way in ("default", "small"):
            if rows == "1":
                ratios[f"{model}_1_row_{way}_of_echo_per_core"] = ways[way]["per_core"]
                ratios[f"{model}_1_row_{way}_of_echo_rate"] = ways[way]["rate"]
            else:
                for limit, rates in in_process[case].items():
                    ours = 1e6 / ways[way]["cpu_us"]
                    ratios[f"{model}_{rows}_rows_{way}_of_{limit}_per_core"] = ours / rates["per_core"]
    for peer in ("mlserver", "bentoml", "ray_serve"):
        keys = [key[1:] for key in found if key[0] == peer]
        for key in keys:
            best_rate = max(found[("rest", *key)].rate, found[("rest_batching", *key)].rate)
            best_p99 = min(found[("rest", *key)].p99_ms, found[("rest_batching", *key)].p99_ms)
            name = "_".join(map(str, key))
            ratios[f"rest_{name}_times_rate_of_{peer}"] = best_rate / found[(peer, *key)].rate
            ratios[f"rest_{name}_times_shorter_p99_than_{peer}"] = found[(peer, *key)].p99_ms / best_p99
            ratios[f"grpc_{name}_times_rate_of_{peer}"] = found[("grpc", *key)].rate / found[(peer, *key)].rate
    for name, switch in switches.items():
        ratios[f"{name}_of_rate_without"] = switch["rate"]
        ratios[f"{name}_of_rate_without_per_core"] = switch["per_core"]
    return {name: round(ratio, 3) for name, ratio in ratios.items()}


def print_table(found: Found, console: Console) -> None:
    """All that was measured."""
    table = Table(title="Requests a second (and a CPU second of the server), latency in ms", title_justify="left")
    for column in ("who", "model", "rows", "clients", "rate", "a CPU second", "p50", "p99"):
        table.add_column(column, justify="left" if column in ("who", "model") else "right")
    for (who, model, rows, clients), m in sorted(found.items(), key=lambda item: (item[0][1:], -item[1].rate)):
        cells = (f"{m.rate:,.0f}", f"{m.per_core:,.0f}", f"{m.p50_ms:.2f}", f"{m.p99_ms:.2f}")
        table.add_row(who, model, str(rows), str(clients), *cells)
    console.print(table)


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement (default 2)")
    parser.add_argument("--turns", type=int, default=7, help="of what is switched on and off (default 7)")
    parser.add_argument("--no-peers", dest="peers", action="store_false", help="without MLServer, BentoML, Ray Serve")
    parser.add_argument("--no-reloads", dest="reloads", action="store_false", help="without the 100 reloads")
    return parser.parse_args()


def main() -> None:
    """Measures, and prints tables and a line of JSON."""
    given, console = parse_arguments(), Console(width=160)
    set_up(given, console)
    in_process = {
        f"{model}-{rows}": call_in_process(WORK / "models", WORK, model, rows, given.seconds)
        for model in MODELS
        for rows in ROWS
    }
    for name, rates in in_process.items():
        told = ", ".join(f"{way} {rate['per_core']:,.0f}" for way, rate in rates.items())
        console.print(f"in process: {name} rows: calls a CPU second: {told}")
    with Clients() as clients:
        limits = measure_limits(clients, given, console)
        switches = {
            "capture": measure_capture(clients, given, console),
            "split": measure_switch(clients, given, console, traffic_config_file=WORK / "split.json"),
        }
        workers = measure_workers(clients, given, console)
        found = measure_all(clients, given, console)
    memory = measure_reloads(console) if given.reloads else {}
    print_table(found, console)
    ratios = ratios_of(found, in_process, limits, switches)
    ratios |= {f"workers_{way}_of_linear_per_core": worker["of_linear_per_core"] for way, worker in workers.items()}
    ratios |= {
        way.replace("echo", "workers_grpc") + "_of_the_echo_per_core": round(
            workers[way.replace("echo", "grpc")]["of_linear_per_core"] / echo["of_linear_per_core"], 3
        )
        for way, echo in workers.items()
        if way.startswith("echo")
    }
    for name, ratio in ratios.items():
        console.print(f"{name}: {ratio}")
    figures = {
        "in_process": in_process,
        "limits": limits,
        "switches": switches,
        "workers": workers,
        "memory": memory,
        "served": {"-".join(map(str, key)): {k: round(v, 3) for k, v in asdict(m).items()} for key, m in found.items()},
    }
    print(json.dumps({"benchmark": "serving", "ratios": ratios, "figures": figures}))


if __name__ == "__main__":
    main()
