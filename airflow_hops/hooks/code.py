"""Fingerprints of code: what a step's cache key knows of the package, its pins and the user's own modules."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import airflow_hops
from airflow_hops.protocol import StepSpec

ML_SIDE = ("artifacts.py", "protocol.py", "sources.py", "store.py", "runtime", "hops", "serving")
"""The modules and folders of this package that run in a step."""


def pins_file() -> Path:
    """The runtime environment's pinned requirements: in the wheel inside the package, in a checkout beside it."""
    package = Path(airflow_hops.__file__).parent
    inside = package / "requirements" / "runtime.txt"
    return inside if inside.exists() else package.parent / "requirements" / "runtime.txt"


@cache
def pins_fingerprint() -> str:
    """SHA-256 (hex) of the pins."""
    return hashlib.sha256(pins_file().read_bytes()).hexdigest()


@cache
def package_fingerprint() -> str:
    """SHA-256 (hex) of the ML side's sources."""
    package = Path(airflow_hops.__file__).parent
    return _sources_fingerprint((package / name for name in ML_SIDE), package)


def user_code_fingerprint(spec: StepSpec) -> str:
    """SHA-256 (hex) of the user modules that a spec names as ``module:function``.

    The whole top-level package counts, since a module may import its siblings.
    """
    found: set[tuple[Path, Path]] = set()
    for name in _module_names([spec.entry, spec.params]):
        top = name.partition(".")[0]
        for folder in spec.code_paths:
            for candidate in (Path(folder) / top, Path(folder) / f"{top}.py"):
                if candidate.exists():
                    found.add((candidate, Path(folder)))
    return "".join(_sources_fingerprint([path], folder) for path, folder in sorted(found))


def _module_names(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        module, separator, function = value.partition(":")
        if separator and function.isidentifier() and all(part.isidentifier() for part in module.split(".")):
            yield module
    elif isinstance(value, dict):
        for item in value.values():
            yield from _module_names(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _module_names(item)


def _sources_fingerprint(paths: Iterable[Path], root: Path) -> str:
    digest = hashlib.sha256()
    for path in paths:
        for source in [path] if path.is_file() else sorted(path.rglob("*.py")):
            digest.update(f"{source.relative_to(root)}\0".encode())
            digest.update(source.read_bytes())
    return digest.hexdigest()
