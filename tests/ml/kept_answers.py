"""Answers that take long, to which nothing that is tested has a part: computed once, and kept."""

from __future__ import annotations

import hashlib
import inspect
import lzma
import os
import pickle
import tempfile
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

ANSWERS = Path(__file__).parent / "answers"
"""Those that are part of the repository."""

_PINS = Path(__file__).parents[2] / "requirements" / "runtime.txt"


@pytest.fixture(scope="session")
def kept() -> Callable[..., Any]:
    """Returns a function's stored answer: ``kept(function, *arguments)``, for these pins, its code and arguments.

    Beam plans for ten seconds what it then does in two. Commit the answers that a change of pins or code makes.
    """
    return partial(_answer, ANSWERS)


def _answer(folder: Path, function: Callable[..., Any], *arguments: Any) -> Any:
    """The answer that is kept in a folder; one of other pins or other code is replaced."""
    path = folder / f"{function.__name__}-{hashlib.sha256(pickle.dumps(arguments)).hexdigest()[:16]}.xz"
    made_of = hashlib.sha256(_PINS.read_bytes() + Path(inspect.getfile(function)).read_bytes()).digest()
    if path.exists():
        result, answer = pickle.loads(lzma.decompress(path.read_bytes()))
        if result == made_of:
            return answer
    answer = function(*arguments)
    if folder == ANSWERS:
        warnings.warn(f"{path} was of other pins or other code: commit it as it is now", stacklevel=2)
    new = path.with_suffix(f".{os.getpid()}")
    new.write_bytes(lzma.compress(pickle.dumps((made_of, answer))))
    new.replace(path)
    return answer


@pytest.fixture(scope="session")
def start_mlflow(pytestconfig: pytest.Config) -> Callable[[Path], str]:
    """Puts the database of an empty MLflow, which migrates one forty times, into a folder; returns the address."""
    cache = pytestconfig.cache.mkdir("answers")  # type: ignore[union-attr]

    def start(folder: Path) -> str:
        (folder / "mlflow.db").write_bytes(_answer(cache, _empty_mlflow))
        return f"sqlite:///{folder}/mlflow.db"

    return start


def _empty_mlflow() -> bytes:
    from mlflow.tracking import MlflowClient

    with tempfile.TemporaryDirectory() as folder:
        MlflowClient(f"sqlite:///{folder}/mlflow.db").search_experiments()
        return (Path(folder) / "mlflow.db").read_bytes()
