"""Rehearsals: whether new windows show the power that they predict, and how long they take; see ``README.md``."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path[0] = str(REPOSITORY)  # not this folder, whose statistics.py is not the standard library's

import numpy as np  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

RUNTIME = REPOSITORY / ".venv-runtime" / "bin" / "python"
NEAR = 0.05
"""Difference of predicted and real power that is near."""


def figures_of(answers: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns how near the predicted power and the predicted false alarms of all tables are to the real ones."""
    cells = [cell for answer in answers for cell in answer.get("cells", ())]
    apart = np.array([cell["predicted"][0] - cell["real"] for cell in cells] or [np.nan])
    covered = [cell["predicted"][1] <= cell["real"] <= cell["predicted"][2] for cell in cells]
    alarms = [abs(answer["false_alarms"][0] - answer["false_alarms"][1]) for answer in answers if "cells" in answer]
    return {
        "cells": len(cells),
        "mean_difference": round(float(np.abs(apart).mean()), 4),
        "largest_difference": round(float(np.abs(apart).max()), 4),
        "bias": round(float(apart.mean()), 4),
        "share_near": round(float((np.abs(apart) <= NEAR).mean()), 4),
        "share_covered": round(float(np.mean(covered or [0])), 4),
        "not_found": sum(answer.get("not_found", 0) for answer in answers),
        "false_alarms_difference": round(float(np.mean(alarms or [0])), 4),
        "speed": next((answer["speed"] for answer in answers if "speed" in answer), None),
    }


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", type=int, default=12)
    parser.add_argument("--features", type=int, default=8, help="columns of a table")
    parser.add_argument("--rows", type=int, default=1_500, help="rows of a window")
    parser.add_argument("--windows", type=int, default=30, help="windows of a rehearsal")
    parser.add_argument("--tries", type=int, default=60)
    parser.add_argument("--faults", type=int, default=31, help="faults of a table")
    parser.add_argument("--real", type=int, default=200, help="new windows with each fault")
    parser.add_argument("--unchanged", type=int, default=400, help="new windows without a fault")
    parser.add_argument("--rhythm", type=float, default=0.3, help="shift on weekends in every third table")
    parser.add_argument("--wide", type=int, default=100, help="features of the measured search; 0 for none")
    options = vars(parser.parse_args())
    settings = {"TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1"}
    command = [str(RUNTIME), "-m", "benchmarks.measurement.rehearsed_windows", json.dumps(options)]
    answers, console = list[dict[str, Any]](), Console(width=110, highlight=False)
    with subprocess.Popen(command, cwd=REPOSITORY, env={**os.environ, **settings}, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        for line in process.stdout:
            answers.append(json.loads(line))
            console.print(f"{len(answers)} of {options['tables'] + bool(options['wide'])}")
    if process.returncode:
        return process.returncode
    figures = figures_of(answers)
    table = Table("figure", "value", box=None)
    for name, value in figures.items():
        table.add_row(name.replace("_", " "), str(value))
    console.print(table)
    print(json.dumps({"benchmark": "rehearsal", "figures": figures}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
