"""Runtime environments over the project's own, with the frameworks that benchmarks train."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from airflow_hops.runner.environments.named import make_named, named_folder
from airflow_hops.runner.environments.runtime import pins_of

REPOSITORY = Path(__file__).resolve().parent.parent.parent
UV = str(REPOSITORY / ".uv" / "bin" / "uv")
TREES = ("benchmark-trees", ("lightgbm", "onnxmltools"))
TORCH = ("benchmark-torch", ("torch==2.13.0+cpu",))


def folder(environment: tuple[str, tuple[str, ...]]) -> Path:
    """Returns the folder of one of the environments above."""
    return named_folder(_base(), environment[0])


def make(environment: tuple[str, tuple[str, ...]], say: Callable[[str], None]) -> Path:
    """Makes one of those above, unless it is there; its Python."""
    name, packages = environment
    make_named(_base(), name, list(packages), pins_of(_base()), uv=UV, say=say)
    return folder(environment) / "bin" / "python"


def _base() -> Path:
    return (REPOSITORY / ".venv-runtime").resolve()
