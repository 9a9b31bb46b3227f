"""Functions of a search: their arguments by name may be parameters of its space."""

from __future__ import annotations

from pathlib import Path

import pytest
from airflow.dag_processing.dagbag import DagBag

DAG_FILE = """
from airflow.sdk import DAG
from airflow_hops.extensions.experiments import SearchOperator
with DAG("search", schedule=None):
    SearchOperator(train="trials:train", space={space}, metric="auc", direction="maximize", params={{"depth": 2}})
"""


@pytest.mark.parametrize(
    ("number", "function", "space", "expected"),
    [
        (0, "def train(context, lr, depth): ...", '{"lr": [0.1, 0.2]}', None),
        (1, "def train(context, lr, size): ...", '{"lr": [0.1, 0.2]}', "trials.py:1: train takes (context, lr, size)"),
        (2, "def train(context, lr, size): ...", '"trials:space"', None),
        (3, "def train(): ...", '"trials:space"', "trials.py:1: train takes (no arguments), but is called with 1"),
        (4, "def train(context): ...", '"trials:spaces"', "has no function 'spaces'; did you mean 'space'?"),
    ],
)
def test_functions_of_a_search_are_checked(
    tmp_path: Path, number: int, function: str, space: str, expected: str | None
) -> None:
    (tmp_path / "trials.py").write_text(f"{function}\ndef space(trial): ...\n")
    file = tmp_path / f"search_{number}.py"
    file.write_text(DAG_FILE.format(space=space))
    errors = "\n".join(DagBag(file).import_errors.values())
    assert errors == "" if expected is None else expected in errors
