"""Two ranks of PyTorch: steps a second of ``TorchTrainOperator``'s ranks against those of ``torchrun``.

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
import shutil  # noqa: E402
import statistics  # noqa: E402
import subprocess  # noqa: E402

import numpy as np  # noqa: E402
import pyarrow as pa  # noqa: E402
import pyarrow.parquet as pq  # noqa: E402
from rich.console import Console  # noqa: E402

from airflow_hops.core.errors import HopsError  # noqa: E402
from benchmarks.measurement import named_environments  # noqa: E402
from benchmarks.measurement.torch_loop import FEATURES, RANKS  # noqa: E402

WORK = REPOSITORY / ".hops" / "benchmarks" / "torch_training"
MODULE = "benchmarks.measurement.torch_loop"
ROWS = 20_000


def set_up(console: Console) -> Path:
    """Makes the environment and the examples; the environment's Python."""
    python = named_environments.make(named_environments.TORCH, console.print)
    shutil.rmtree(WORK, ignore_errors=True)
    random = np.random.default_rng(0)
    for split, rows in {"train": ROWS, "eval": 1000}.items():
        features = random.normal(size=(rows, FEATURES)).astype("float32")
        columns = {f"f{number}": features[:, number] for number in range(FEATURES)}
        (WORK / "examples" / split).mkdir(parents=True)
        label = (features[:, 0] + random.normal(size=rows) > 0).astype("int64")
        pq.write_table(pa.table({**columns, "label": label}), WORK / "examples" / split / "part-0.parquet")
    return python


def measure(python: Path, way: str, steps: int) -> float:
    """Steps a second of one run."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
    command = [str(python), *(torchrun if way == "torchrun" else []), "-m", MODULE, way, str(WORK), str(steps)]
    shutil.rmtree(WORK / "model", ignore_errors=True)
    (WORK / "rate").unlink(missing_ok=True)
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=REPOSITORY, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode:
        raise SystemExit(f"{way} ended with {done.returncode}:\n{done.stdout[-3000:]}")
    return float((WORK / "rate").read_text())


def main() -> None:
    """Measures, turn by turn, and prints a line of JSON last."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=3000, help="of each run (default 3000)")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each way (default 5)")
    given, console = parser.parse_args(), Console(width=120)
    try:
        python = set_up(console)
    except HopsError as error:
        print(json.dumps({"skipped": f"no CPU build of PyTorch where pip and uv look: {error}"}))
        return
    rates: dict[str, list[float]] = {"ours": [], "torchrun": []}
    for turn in range(given.rounds):
        for way in list(rates)[:: 1 if turn % 2 else -1]:
            rates[way].append(measure(python, way, given.steps))
            console.print(f"{way}: {rates[way][-1]:,.1f} steps/s")
    medians = {way: statistics.median(found) for way, found in rates.items()}
    ratio = round(medians["ours"] / medians["torchrun"], 3)
    console.print(f"median: ours {medians['ours']:,.1f}, torchrun {medians['torchrun']:,.1f} steps/s: {ratio}")
    marks = {"steps_of_torchrun": {"mark": 0.98, "measured": ratio, "reached": ratio >= 0.98}}
    print(json.dumps({"steps_per_second": rates, "ratios": {"steps_of_torchrun": ratio}, "marks": marks}))


if __name__ == "__main__":
    main()
