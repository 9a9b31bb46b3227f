"""The files of a named environment, which adds packages to those of the runtime environment."""

from __future__ import annotations

from pathlib import Path

BASE_NAME = "hops-base.txt"
"""File in a named environment: the folder of the environment whose packages it has, too."""

LOCK_NAME = "hops-lock.txt"
"""File in a named environment: the packages that it adds, and their versions, one a line as ``name==version``."""


def base_of(runtime: Path) -> Path:
    """Returns the environment below a named environment; for any other environment, itself."""
    result = _lines(runtime / BASE_NAME)
    return Path(result[0]) if result else runtime


def environment_name(runtime: Path) -> str | None:
    """The name of a named environment; None for any other environment."""
    base = base_of(runtime)
    return None if base == runtime else runtime.name.removeprefix(f"{base.name}-")


def locked_packages(runtime: Path) -> list[str]:
    """Returns the locked packages that a named environment adds; empty for any other environment."""
    return _lines(runtime / LOCK_NAME)


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text().splitlines()
    except (FileNotFoundError, NotADirectoryError):
        return []
