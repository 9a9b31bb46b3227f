"""Contributions to predictions of tree ensembles against the library shap: seconds, predictions, and agreement.

See ``README.md`` for what each figure means.
"""

from __future__ import annotations

import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path[0] = str(REPOSITORY)  # not this folder, whose statistics.py is not the standard library's

import argparse  # noqa: E402
import json  # noqa: E402
import statistics  # noqa: E402
from typing import Any  # noqa: E402

import numpy as np  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

from airflow_hops.runner.environments.runtime import create_environment  # noqa: E402
from benchmarks.measurement.timing import Timed, time_work  # noqa: E402

WORK = REPOSITORY / ".hops" / "benchmarks" / "explain"
SIDES = {
    "ours": (REPOSITORY / ".venv-runtime", "benchmarks.measurement.explain_ways"),
    "shap": (REPOSITORY / ".hops" / "peers" / "explain", "benchmarks.peers.shap_values"),
}
MODELS = {"boosted": "100 boosted trees of depth 5", "forest": "forest of 50 trees of depth 8"}
WAYS = {"trees": "by the trees", "sampled": "by asking the model"}


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="runs of each way in turn")
    rounds = parser.parse_args().rounds
    console = Console()
    WORK.mkdir(parents=True, exist_ok=True)
    uv, pins = str(REPOSITORY / ".uv" / "bin" / "uv"), REPOSITORY / "benchmarks" / "peers" / "explain.txt"
    create_environment(SIDES["shap"][0], pins, uv=uv, say=console.print)
    runs: dict[tuple[str, str, str], list[Timed]] = {}
    for number in range(rounds):
        for way, model in ((way, model) for way in WAYS for model in MODELS):
            for side, (environment, module) in SIDES.items():
                timed = time_work(environment, module, way, model, WORK)
                runs.setdefault((way, model, side), []).append(timed)
                console.print(f"round {number + 1}: {model} {WAYS[way]}, {side}: {timed.seconds:.2f} s")
    figures = {
        f"{way}_{model}": {side: figures_of(runs[way, model, side], way, model, side) for side in SIDES}
        for way in WAYS
        for model in MODELS
    }
    ratios = {
        **{
            f"{name}_times_faster": round(sides["shap"]["s"] / sides["ours"]["s"], 2) for name, sides in figures.items()
        },
        **{
            f"{name}_cpu_of_shap": round(sides["ours"]["cpu_ms_per_row"] / sides["shap"]["cpu_ms_per_row"], 3)
            for name, sides in figures.items()
        },
        **{f"{model}_largest_difference": difference(model) for model in MODELS},
    }
    print_table(figures, console)
    print(json.dumps({"benchmark": "explain", "ratios": ratios, "figures": figures}))
    return 0


def figures_of(runs: list[Timed], way: str, model: str, side: str) -> dict[str, Any]:
    """Medians of a way, and for sampled values their error: the root of the mean square beside exact values."""
    facts = dict(runs[0].facts)
    cpu_s, seconds = (statistics.median(getattr(run, name) for run in runs) for name in ("cpu_s", "seconds"))
    figures = {"s": round(seconds, 3), "cpu_ms_per_row": round(1000 * cpu_s / facts["rows"], 3), **facts}
    if way == "sampled":
        exact = np.load(WORK / f"ours_{model}_trees.npy")
        values = np.load(WORK / f"{side}_{model}_sampled.npy")
        figures["error"] = float(f"{np.sqrt(np.square(values - exact[: len(values)]).mean()):.2e}")
    return figures


def difference(model: str) -> float:
    """Returns the largest difference between the exact contributions of both."""
    ours, theirs = (np.load(WORK / f"{side}_{model}_trees.npy") for side in SIDES)
    return float(f"{np.abs(ours - theirs).max():.1e}")


def print_table(figures: dict[str, dict[str, Any]], console: Console) -> None:
    """The table."""
    table = Table(title="20 features, 100 rows of the background", title_justify="left")
    for column in ("model", "contributions", "side", "rows", "CPU ms per row", "predictions", "needed", "error"):
        table.add_column(column)
    for name, sides in figures.items():
        way, model = name.split("_")
        for side, figures_of_side in sides.items():
            counts = (
                f"{figures_of_side[key]:,}" if way == "sampled" and key in figures_of_side else ""
                for key in ("predictions", "needed")
            )
            error = f"{figures_of_side['error']:.1e}" if "error" in figures_of_side else "exact"
            table.add_row(
                MODELS[model],
                WAYS[way],
                side,
                str(figures_of_side["rows"]),
                f"{figures_of_side['cpu_ms_per_row']:.2f}",
                *counts,
                error,
            )
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())
