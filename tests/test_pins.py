"""The table of pins: which requirement of which package excludes the newest release."""

from __future__ import annotations

from typing import Any

import pytest
from pins import applicable, keepers

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
