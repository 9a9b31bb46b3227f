"""Profiles of the runtime environment: sets of pinned libraries for older and newer machines.

Files in an environment say which profile it has, and what a named environment extends. Standard library only.
"""

from __future__ import annotations

import functools
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from airflow_hops.core.artifacts.artifact import PROFILE_NAMES
from airflow_hops.core.errors import BadInput

BASE_NAME = "hops-base.txt"
"""File in a named environment: the runtime environment's folder, and :data:`STANDALONE` if it does not extend that."""

STANDALONE = "standalone"

LOCK_NAME = "hops-lock.txt"
"""File in a named environment with its additional packages, one a line as ``name==version``."""

STAMP_NAME = "hops-pins.sha256"
"""File in an environment, written last: fingerprint of its pins, the folder that it was made in, name of its pins."""


@dataclass(frozen=True)
class Profile:
    """A set of pins.

    Attributes:
        name: ``base`` or ``current``.
        pins: Name of the file with the pins.
        pythons: Versions of Python that the pins are for, the preferred one first.
        glibc: Oldest version of the C library that TFDV's wheel runs on.
        javas: Versions of Java that its Spark supports.
        tensorflow: Feature version of TensorFlow.
        spark: Feature version of Spark.
        protobuf: Major version of protobuf that this TensorFlow needs.
    """

    name: str
    pins: str
    pythons: tuple[tuple[int, int], ...]
    glibc: tuple[int, int]
    javas: tuple[int, ...]
    tensorflow: str
    spark: str
    protobuf: str

    @property
    def cuda_pins(self) -> str:
        """Name of the file that pins CUDA's libraries as well."""
        return self.pins.replace(".txt", "-cuda.txt")


# Spark 3.5 (HADOOP-19212): Hadoop's login needs the security manager, which Java 24 and later have removed.
BASE = Profile(PROFILE_NAMES[0], "runtime.txt", ((3, 11),), (2, 17), (8, 11, 17), "2.16", "3.5", "4")
CURRENT = Profile(PROFILE_NAMES[1], "runtime-current.txt", ((3, 13), (3, 12)), (2, 39), (17, 21), "2.21", "4.1", "6")
PROFILES = (BASE, CURRENT)
"""All profiles, the oldest first."""


def profile_named(name: str) -> Profile:
    """Returns the profile of a name.

    Raises:
        BadInput: there is none; a newer version of this package may have it.
    """
    for profile in PROFILES:
        if profile.name == name:
            return profile
    names = " or ".join(repr(profile.name) for profile in PROFILES)
    raise BadInput(f"profile {name!r}: expected {names}; if a newer airflow-hops has it, upgrade this one")


def profile_of_pins(file: str) -> Profile | None:
    """Returns the profile with a file of pins, with CUDA or without; None for other pins."""
    return next((profile for profile in PROFILES if file in (profile.pins, profile.cuda_pins)), None)


def profile_of(runtime: Path) -> Profile | None:
    """Returns the profile of an environment, or of the base of a named one; None for others, such as Airflow's.

    One that this package did not make has the profile of its Python.
    """
    base = base_of(runtime)
    if stamp := read_stamp(base):
        return profile_of_pins(stamp.pins or BASE.pins)
    if not any(base.glob("lib/python3*/site-packages/tensorflow_data_validation")):
        return None
    version = tuple(python_version(base).split(".")[:2])
    return next((each for each in PROFILES if version in [(str(a), str(b)) for a, b in each.pythons]), None)


@functools.cache
def own_profile() -> Profile | None:
    """Returns the profile of this process's environment; None for Airflow's."""
    return profile_of(Path(sys.prefix))


def python_version(environment: Path) -> str:
    """Returns the version of an environment's Python; empty if unknown."""
    try:
        lines = (environment / "pyvenv.cfg").read_text().splitlines()
    except OSError:
        return ""
    versions = (line.partition("=")[2].strip() for line in lines if line.startswith("version"))
    return next(versions, "")


class Stamp(NamedTuple):
    """Origin of an environment; empty for unknown values.

    Attributes:
        made_of: Fingerprint of the pins.
        made_in: The folder.
        pins: Name of the file of pins.
    """

    made_of: str = ""
    made_in: str = ""
    pins: str = ""


def read_stamp(path: Path) -> Stamp | None:
    """Returns the stamp of an environment; None if this package did not make it."""
    try:
        return Stamp(*(path / STAMP_NAME).read_text().splitlines()[:3])
    except (FileNotFoundError, NotADirectoryError):
        return None


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
