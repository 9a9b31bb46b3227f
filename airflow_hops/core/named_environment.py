"""Files of a named environment, which adds packages to the runtime environment."""

from __future__ import annotations

from pathlib import Path

BASE_NAME = "hops-base.txt"
"""File in a named environment: the runtime environment's folder, and :data:`STANDALONE` if it does not extend that."""

STANDALONE = "standalone"

LOCK_NAME = "hops-lock.txt"
"""File in a named environment with its additional packages, one a line as ``name==version``."""


def base_of(runtime: Path) -> Path:
    """Returns the runtime environment that a named environment belongs to; others are returned unchanged."""
    result = _lines(runtime / BASE_NAME)
    return Path(result[0]) if result else runtime


def is_standalone(runtime: Path) -> bool:
    """Returns whether a named environment imports nothing from the runtime environment."""
    return STANDALONE in _lines(runtime / BASE_NAME)[1:]


def environment_name(runtime: Path) -> str | None:
    """Returns the name of a named environment; None for other environments."""
    base = base_of(runtime)
    return None if base == runtime else runtime.name.removeprefix(f"{base.name}-")


def locked_packages(runtime: Path) -> list[str]:
    """Returns the additional packages of a named environment; empty for other environments."""
    return _lines(runtime / LOCK_NAME)


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text().splitlines()
    except (FileNotFoundError, NotADirectoryError):
        return []
