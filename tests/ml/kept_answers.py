"""Answers that take long, to which nothing that is tested has a part: computed once, and kept in pytest's cache."""

from __future__ import annotations

import hashlib
import inspect
import os
import pickle
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def kept(pytestconfig: pytest.Config) -> Callable[..., Any]:
    """What a function answers: ``kept(function, *arguments)``, for these pins, its module's code and the arguments.

    Beam plans for ten seconds what it then does in two; MLflow migrates an empty database forty times.
    """
    folder = pytestconfig.cache.mkdir("answers")  # type: ignore[union-attr]
    pins = (Path(__file__).parents[2] / "requirements" / "runtime.txt").read_bytes()

    def answer(function: Callable[..., Any], *arguments: Any) -> Any:
        told = pickle.dumps((pins, Path(inspect.getfile(function)).read_bytes(), arguments))
        path = folder / f"{function.__name__}-{hashlib.sha256(told).hexdigest()}"
        if not path.exists():
            made = path.with_suffix(f".{os.getpid()}")
            made.write_bytes(pickle.dumps(function(*arguments)))
            made.replace(path)
        return pickle.loads(path.read_bytes())

    return answer


@pytest.fixture(scope="session")
def start_mlflow(kept: Callable[..., Any]) -> Callable[[Path], str]:
    """Puts the database of an empty MLflow into a folder; returns the address."""

    def start(folder: Path) -> str:
        (folder / "mlflow.db").write_bytes(kept(_empty_mlflow))
        return f"sqlite:///{folder}/mlflow.db"

    return start


def _empty_mlflow() -> bytes:
    from mlflow.tracking import MlflowClient

    with tempfile.TemporaryDirectory() as folder:
        MlflowClient(f"sqlite:///{folder}/mlflow.db").search_experiments()
        return (Path(folder) / "mlflow.db").read_bytes()
