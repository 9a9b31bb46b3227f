"""The bounds in ``pyproject.toml`` admit what Airflow's constraints and managed images pin."""

from __future__ import annotations

import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "tests" / "constraints"
OWN_RELEASES = {"hdfs-native"}
"""Dependencies that no constraints of Airflow pin."""


def requirements() -> dict[str, Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [
        *project["dependencies"],
        *(line for requirements_of in project["optional-dependencies"].values() for line in requirements_of),
    ]
    return {canonicalize_name(each.name): each for each in map(Requirement, lines)}


def pins(file: Path) -> dict[str, str]:
    lines = [line for line in file.read_text().splitlines() if not line.startswith("#")]
    return {canonicalize_name(name): version for name, _, version in (line.partition("==") for line in lines)}


@pytest.mark.parametrize("file", sorted(FOLDER.glob("*.txt")), ids=lambda file: file.stem)
def test_bounds_admit_pinned_versions(file: Path) -> None:
    required = requirements()
    refused = {
        name: f"{version} is not {required[name].specifier}"
        for name, version in pins(file).items()
        if not required[name].specifier.contains(version, prereleases=True)
    }
    assert refused == {}


def test_every_dependency_has_a_lower_bound_and_is_in_the_copies() -> None:
    required = requirements()
    unbounded = [name for name, each in required.items() if not {">=", "=="} & {s.operator for s in each.specifier}]
    assert unbounded == []
    for file in FOLDER.glob("airflow-*.txt"):
        assert set(pins(file)) == required.keys() - OWN_RELEASES, file.name


@pytest.mark.skipif(not Path(sys.prefix, "lowest.txt").exists(), reason="needs make airflow LOWEST=1")
def test_lowest_environment_has_the_bounds_themselves() -> None:
    bounds = {
        name: next(Version(s.version) for s in each.specifier if s.operator in (">=", "=="))
        for name, each in requirements().items()
    }
    assert {name: Version(version(name)) for name in bounds if name != "apache-airflow"} == {
        name: bound for name, bound in bounds.items() if name != "apache-airflow"
    }
    assert Version(version("apache-airflow")).release[:2] == bounds["apache-airflow"].release
