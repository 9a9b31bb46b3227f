"""The taxi and penguin examples by TFX, and as ``docs/start/from_tfx.md`` migrates them, on the same rows.

The page's own modules and DAG run in a real Airflow with a model server. Rows are made up in the examples' columns,
and hold out 20% on both sides, though not the same rows. See ``README.md``.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pandas as pd
from rich.console import Console
from rich.table import Table

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path[0] = str(REPOSITORY)  # not this folder, whose statistics.py is not the standard library's

from benchmarks.measurement.runs import run_dag  # noqa: E402
from benchmarks.measurement.tfx import Tfx  # noqa: E402
from demo.services import Stack  # noqa: E402

PAGE = REPOSITORY / "docs" / "start" / "from_tfx.md"
PREPARE_PENGUINS = "def prepare(connection, tables):\n    return tables['penguins']\n"


def trips(rows: int) -> pd.DataFrame:
    """Trips whose riders tip if they pay by card, a few without a fare or a company."""
    random = np.random.default_rng(1)
    payment = random.choice(["Credit Card", "Cash", "No Charge"], rows)
    fare = random.gamma(3, 5, rows)
    return pd.DataFrame(
        {
            "trip_miles": fare / 3 + random.normal(0, 0.2, rows),
            "fare": np.where(random.random(rows) < 0.02, np.nan, fare),
            "trip_seconds": (fare * 60).astype(int),
            "pickup_latitude": random.normal(41.9, 0.1, rows),
            "pickup_longitude": random.normal(-87.6, 0.1, rows),
            "trip_start_hour": random.integers(0, 24, rows),
            "payment_type": payment,
            "company": np.where(random.random(rows) < 0.5, None, random.choice(["Blue", "Sun", "City"], rows)),
            "tips": np.where(payment == "Credit Card", fare * random.uniform(0.1, 0.5, rows), 0.0),
        }
    )


def penguins(rows: int) -> pd.DataFrame:
    """Measurements around the means of three species."""
    random = np.random.default_rng(2)
    kind = random.integers(0, 3, rows)
    means = {
        "bill_length_mm": (38.8, 48.8, 47.5),
        "bill_depth_mm": (18.3, 18.4, 15.0),
        "flipper_length_mm": (190.0, 196.0, 217.0),
        "body_mass_g": (3700.0, 3733.0, 5076.0),
    }
    measured = {name: np.array(values)[kind] * random.normal(1, 0.08, rows) for name, values in means.items()}
    return pd.DataFrame({**measured, "species": np.array(["Adelie", "Chinstrap", "Gentoo"])[kind]})


def write_tables(folder: Path, rows: int) -> None:
    """Writes the CSV of each example: with raw rows, and as TFX's takes them, with a label of numbers."""
    of_taxi, of_penguins = trips(rows), penguins(rows // 4)
    tipped = (of_taxi["tips"] > 0.2 * of_taxi["fare"]).astype(int)
    numbers = of_penguins["species"].map({"Adelie": 0, "Chinstrap": 1, "Gentoo": 2})
    for name, raw, labelled in (
        ("taxi", of_taxi, of_taxi.drop(columns="tips").assign(big_tip=tipped)),
        ("penguin", of_penguins, of_penguins.assign(species=numbers)),
    ):
        for side, table in (("own", raw), ("tfx", labelled)):
            (folder / side / name).mkdir(parents=True)
            table.to_csv(folder / side / name / "rows.csv", index=False)


def write_dags(folder: Path, tables: Path) -> None:
    """Writes the page's modules and its DAG; the penguins' DAG is that of the taxi with other names."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    for block in blocks:
        if named := re.match(r"# (\w+/\w+\.py)\n", block):
            (folder / named[1]).parent.mkdir(parents=True, exist_ok=True)
            (folder / named[1]).write_text(block)
    (folder / "penguin" / "prepare.py").write_text(PREPARE_PENGUINS)
    (dag,) = (block for block in blocks if 'with DAG("taxi"' in block)
    dag = dag.replace("/data/taxi/*.csv", str(tables / "own" / "taxi" / "*.csv"))
    (folder / "taxi_dag.py").write_text(dag)
    names = {"taxi": "penguin", "trips": "penguins", "big_tip": "species", '{"auc"': '{"accuracy"'}
    for old, new in names.items():
        dag = dag.replace(old, new)
    (folder / "penguin_dag.py").write_text(re.sub(r"\n +slices=.*", "", dag))


def main() -> int:
    """Runs both, and prints a table and a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=20_000, help="trips; a quarter as many penguins (20000)")
    given, work = parser.parse_args(), REPOSITORY / ".hops" / "from-tfx"
    console = Console(stderr=True)
    shutil.rmtree(work, ignore_errors=True)
    write_tables(work, given.rows)
    write_dags(work / "dags", work)
    peer = Tfx(work / "tfx")
    peer.install()
    results: dict[str, dict[str, dict[str, float]]] = {"taxi": {}, "penguin": {}}
    for name, result in results.items():
        console.print(f"TFX: {name}")
        run = peer.run(work / f"tfx-{name}", work / "tfx" / name, name)
        result["TFX"] = {"seconds": run.total, "auc": run.answer["auc"], "accuracy": run.answer["accuracy"]}
    with Stack(work / "own-home", (REPOSITORY / ".venv-runtime").resolve(), work / "dags", say=console.print) as stack:
        api = stack.start()
        for name, result in results.items():
            api.wait_for_dag(name)
            own = run_dag(api, name, {})
            metrics = own.values["evaluate"]["metrics"]
            result["airflow-hops"] = {"seconds": own.total} | {
                metric: metrics.get(f"eval_{metric}") for metric in ("auc", "accuracy")
            }
    table = Table("example", "by", "seconds", "AUC", "accuracy")
    for name, result in results.items():
        for by, figures_of_way in result.items():
            figures = (
                "–" if figures_of_way[metric] is None else f"{figures_of_way[metric]:.4f}"
                for metric in ("auc", "accuracy")
            )
            table.add_row(name, by, f"{figures_of_way['seconds']:.1f}", *figures)
    console.print(table)
    print(json.dumps(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
