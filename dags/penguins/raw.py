"""The raw table of penguins."""

from __future__ import annotations

import importlib.util
from pathlib import Path

SPECIES = ("Adelie", "Chinstrap", "Gentoo")


def penguins_file() -> str:
    """Path of a CSV file of 344 penguins, measured near Palmer Station from 2007 to 2009 (CC0).

    It is that of the Python package ``palmerpenguins``, which is located without being imported.

    Raises:
        FileNotFoundError: the package is not installed.
    """
    spec = importlib.util.find_spec("palmerpenguins")
    if spec is None or spec.origin is None:
        raise FileNotFoundError("penguins.csv: install the package palmerpenguins beside Airflow")
    return str(Path(spec.origin).parent / "data" / "penguins.csv")
