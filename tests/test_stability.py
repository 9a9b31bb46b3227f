"""Marks of stability: every public name has one, and a deprecated one works and warns."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from step_runner import REPOSITORY

import airflow_hops
import airflow_hops.extensions
from airflow_hops.core import stability
from airflow_hops.core.stability import deprecated
from airflow_hops.operators.base import HopsTask

sys.path.append(str(REPOSITORY / "docs"))

import generated

RELEASES = (REPOSITORY / "docs" / "operate" / "releases.md").read_text()


def test_page_lists_each_public_name_with_its_mark() -> None:
    names = generated.public_names()
    for package in (airflow_hops, airflow_hops.extensions):
        assert sorted(names[package.__name__]) == sorted(package.__all__)
    assert names["airflow_hops"]["TrainOperator"] == "stable"
    assert names["airflow_hops.extensions"]["SharedValues"] == "experimental"
    rows = list(generated.Stability.lines(None))  # type: ignore[arg-type]
    for package, marks in names.items():
        listed = [row for row in rows if row.startswith(f"| `{package}` | ")]
        assert sum(row.count("`") // 2 - 1 for row in listed) == len(marks), package
    assert "{hops-stability}" in RELEASES


def test_only_public_names_are_marked() -> None:
    public = {name for names in generated.public_names().values() for name in names}
    assert sorted(generated.marked_names()) == sorted(public & set(generated.marked_names()))
    assert stability.experimental(lambda: 1).__stability__ == "experimental"  # type: ignore[attr-defined]


def test_deprecated_names_work_and_warn() -> None:
    @deprecated("0.2", "0.4", "add_all")
    def add(one: int, other: int) -> int:
        """Adds."""
        return one + other

    @deprecated("0.2", "0.4", "NewOperator")
    class OldOperator(HopsTask):
        def __init__(self, *, number: int, **kwargs: Any) -> None:
            super().__init__(**kwargs)
            self.number = number

    with pytest.warns(FutureWarning, match=r"add is deprecated since 0\.2, .* 0\.4; use add_all") as seen:
        assert (add(1, 2), add.__doc__) == (3, "Adds.")
    with pytest.warns(FutureWarning, match="OldOperator is deprecated .*use NewOperator") as seen_of_class:
        assert OldOperator(task_id="old", number=1).number == 1
    assert {each.filename for each in [*seen, *seen_of_class]} == {__file__}
    assert OldOperator.partial(task_id="mapped").expand(number=[1, 2]).task_id == "mapped"
