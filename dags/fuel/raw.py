"""The raw table of cars."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

from airflow.configuration import AIRFLOW_HOME


def cars_file() -> str:
    """Path of a file of 406 cars of 1970 to 1982, one JSON object a line (Donoho and Ramos, 1982; of StatLib).

    They are those of the Python package ``vega_datasets``, which is located without being imported; its array of JSON
    becomes lines, which ``IngestOperator`` reads.

    Raises:
        FileNotFoundError: the package is not installed.
    """
    spec = importlib.util.find_spec("vega_datasets")
    if spec is None or spec.origin is None:
        raise FileNotFoundError("cars.json: install the package vega_datasets beside Airflow")
    cars = json.loads((Path(spec.origin).parent / "_data" / "cars.json").read_text())
    path = Path(AIRFLOW_HOME) / "fuel" / "cars.jsonl"
    lines = "".join(f"{json.dumps(car)}\n" for car in cars)
    # A file that is written anew would be read anew.
    if not path.exists() or path.read_text() != lines:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(lines)
    return str(path)
