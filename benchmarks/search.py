"""A search: trials an hour against bare Optuna on the same function, overhead per trial, a study of 10,000 trials.

See ``README.md`` for what each figure means.
"""

from __future__ import annotations

import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path[0] = str(REPOSITORY)  # not this folder, whose statistics.py is not the standard library's

import argparse  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import subprocess  # noqa: E402
import tempfile  # noqa: E402

from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

PARALLEL = 2
MODULE = "benchmarks.measurement.search_ways"
WAYS = {"ours": PARALLEL, "optuna": 1, "optuna_processes": PARALLEL}
"""How many trials run at once in each."""
MARK = 0.95
"""Share of the ideal at the longest trials."""


def measure(way: str, seconds: float, trials: int) -> dict[str, float]:
    """Measures a way in its own process."""
    python = REPOSITORY / ".venv-runtime" / "bin" / "python"
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "PYTHONDONTWRITEBYTECODE": ""}
    with tempfile.TemporaryDirectory(prefix="benchmark-search-") as folder:
        command = [str(python), "-m", MODULE, way, folder, str(seconds), str(trials)]
        done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{way} ended with {done.returncode}:\n{done.stderr[-3000:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Measures, prints tables, and a line of JSON last."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, nargs="+", default=[1.0, 10.0], help="of a trial (default 1 and 10)")
    parser.add_argument("--for-s", type=float, default=30.0, help="seconds that each way takes (default 30)")
    parser.add_argument("--trials", type=int, default=10_000, help="of the large study (default 10000)")
    given, console = parser.parse_args(), Console(width=120)
    figures, ratios = {}, {}
    table = Table("seconds a trial", "way", "at once", "trials an hour", "of the ideal", "CPU s a trial")
    for seconds in given.seconds:
        rates = {}
        for way, at_once in WAYS.items():
            trials = max(2, round(given.for_s / seconds)) * at_once
            found = measure(way, seconds, trials)
            rates[way] = 3600 * trials / found["seconds"]
            share = rates[way] * seconds / 3600 / at_once
            figures[f"{way} {seconds:g} s"] = {**found, "trials": trials, "of_ideal": share}
            table.add_row(
                f"{seconds:g}",
                way,
                str(at_once),
                f"{rates[way]:,.0f}",
                f"{share:.3f}",
                f"{found['cpu_s'] / trials:.2f}",
            )
        ratios[f"ours against Optuna in {PARALLEL} processes, {seconds:g} s"] = (
            rates["ours"] / rates["optuna_processes"]
        )
    console.print(table)
    nothing = measure("ours", 0.0, 40)
    figures["overhead"] = {name: value / 40 for name, value in nothing.items()}
    console.print(
        f"a trial that does nothing: {1000 * PARALLEL * nothing['seconds'] / 40:.0f} ms of its slot, "
        f"{1000 * nothing['cpu_s'] / 40:.0f} ms of CPU"
    )
    figures["large"] = measure("large", 0.0, given.trials)
    console.print(f"{given.trials} trials:", {name: round(value, 4) for name, value in figures["large"].items()})
    longest = figures[f"ours {max(given.seconds):g} s"]["of_ideal"]
    console.print(
        f"of the ideal, {max(given.seconds):g} s: {longest:.3f} ({'reached' if longest >= MARK else 'missed'})"
    )
    print(json.dumps({"ratios": ratios, "figures": figures}))


if __name__ == "__main__":
    main()
