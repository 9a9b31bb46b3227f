"""Bounds in ``pyproject.toml`` admit what Airflow's constraints and managed images pin; the table of pins."""

from __future__ import annotations

import sys
import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from pins import applicable, keepers

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


REQUIRES = {
    "tfx_bsl": [
        "numpy<2,>=1.22",
        "pandas<2; python_version < '3.12'",
        "Apache-Beam[GCP]<3",
        "six; sys_platform == 'win32'",
    ],
    "apache-beam": ["numpy>=1.14.3,<2.5.0", "orjson; extra == 'gcp'", "pytest<8; extra == 'test'"],
    "airflow-hops": ["numpy"],
}


def required(python: str = "3.11", **more: Any) -> Any:
    return applicable({**REQUIRES, **more}, python)


def test_requirements_hold_for_the_python_and_the_extras_that_are_asked_for() -> None:
    assert list(map(str, required()["tfx-bsl"])) == [
        "numpy<2,>=1.22",
        'pandas<2; python_version < "3.12"',
        "Apache-Beam[GCP]<3",
    ]
    assert [each.name for each in required("3.12")["tfx-bsl"]] == ["numpy", "Apache-Beam"]
    assert [each.name for each in required()["apache-beam"]] == ["numpy", "orjson"]


@pytest.mark.parametrize(
    ("package", "newest", "expected"),
    [
        ("numpy", "2.4.6", ["tfx-bsl: numpy<2"]),
        ("numpy", "2.5.5", ["apache-beam: numpy<2.5.0", "tfx-bsl: numpy<2"]),
        ("numpy", "1.26.4", []),
        ("numpy", "2.0.0rc1", ["tfx-bsl: numpy<2"]),
        ("apache-beam", "2.77.0", []),
        ("apache-beam", "3.0", ["tfx-bsl: apache-beam<3"]),
        ("pytest", "9.2.0", []),
    ],
)
def test_a_pin_is_kept_by_who_excludes_the_newest_release(package: str, newest: str, expected: list[str]) -> None:
    assert keepers(package, newest, required()) == expected


def test_an_override_is_in_place_of_what_packages_require() -> None:
    assert keepers("numpy", "2.5.5", required(override=["numpy>=1"])) == []
    assert keepers("numpy", "2.5.5", required(override=["numpy<2.2"])) == ["override: numpy<2.2"]
