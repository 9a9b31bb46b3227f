"""Scores exported models on the same rows; runs in the runtime environment.

Usage: ``python -m demo.compare TABLE.parquet NAME=SAVED_MODEL [NAME=SAVED_MODEL …]``; prints one line of JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from airflow_hops import evaluate_model


def main(table: str, *models: str) -> None:
    """Prints the overall figures of each model, by name."""
    figures = {}
    for model in models:
        name, _, path = model.partition("=")
        figures[name] = evaluate_model(Path(path), [Path(table)], "late")
    print(json.dumps(figures))


if __name__ == "__main__":
    main(*sys.argv[1:])
