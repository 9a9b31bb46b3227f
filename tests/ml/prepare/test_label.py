"""The target of a label, and the numbers of its classes, as its values tell."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_hops.core.artifacts.target import Target
from airflow_hops.core.errors import BadInput
from airflow_hops.core.prepare.options import PrepareOptions
from airflow_hops.ml.prepare.label import find_target, numbers

Find = Callable[..., Target]


@pytest.fixture
def find(tmp_path: Path) -> Find:
    """The target of splits with these labels: ``find(["a", "b"], eval=["a"], problem="binary")``."""

    def target(train: list[Any], eval: list[Any] | None = None, **options: Any) -> Target:
        files = {}
        for split, values in {"train": train, **({} if eval is None else {"eval": eval})}.items():
            files[split] = [tmp_path / f"{split}-{number}.parquet" for number in (0, 1)]
            for number, file in enumerate(files[split]):
                pq.write_table(pa.table({"x": values[number::2], "y": pa.array(values[number::2])}), file)
        return find_target(files, PrepareOptions("m:f", "y", **options))

    return target


@pytest.mark.parametrize(
    ("values", "options", "problem", "classes"),
    [
        ([0, 1, 1, 0], {}, "binary", None),
        ([0.0, 1.0, 1.0, 1.0], {}, "binary", None),
        (["yes", "no", "no", "yes"], {}, "binary", ("no", "yes")),
        (["b", "a", "c", "a"], {}, "multiclass", ("a", "b", "c")),
        ([0.5, 1.0, 1.0, 3.0], {}, "regression", None),
        ([10, 9, 2, 2], {"problem": "multiclass"}, "multiclass", ("2", "9", "10")),
        ([10.0, 9.0, 2.0, 2.0], {"problem": "multiclass"}, "multiclass", ("2", "9", "10")),
        ([0, 1, 1, 0], {"problem": "regression"}, "regression", None),
        ([-1, 1, 1, -1], {"problem": "binary"}, "binary", ("-1", "1")),
        (["a", "b", "b", "a"], {"classes": ["b", "a", "z"], "weight": "w"}, "multiclass", ("b", "a", "z")),
        ([3, 5, 5, 3], {"classes": [5, 3]}, "binary", ("5", "3")),
    ],
)
def test_problem_is_inferred_from_values(
    find: Find, values: list[Any], options: dict[str, Any], problem: str, classes: tuple[str, ...] | None
) -> None:
    assert find(values, **options) == Target("y", problem, classes, options.get("weight"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("values", "target", "expected"),
    [
        (pa.array(["a", "b"]), Target("y", "binary", ("b", "a")), pa.array([1, 0])),
        (pa.array([10, 9]), Target("y", "multiclass", ("2", "9", "10")), pa.array([2, 1])),
        (pa.array([10.0, -2.0]), Target("y", "binary", ("-2", "10")), pa.array([1, 0])),
        (pa.array([1.0, 0.0]), Target("y"), pa.array([1, 0])),
        (pa.array([7, 2]), Target("y", "regression"), pa.array([7.0, 2.0])),
    ],
)
def test_examples_hold_numbers(values: pa.Array, target: Target, expected: pa.Array) -> None:
    assert numbers(values, target).equals(expected)
    with pytest.raises(BadInput, match=r"label 'y' has an integer that no double holds \(.*9007199254740993"):
        numbers(pa.array([1, 2**53 + 1]), Target("y", "regression"))


@pytest.mark.parametrize(
    ("train", "options", "expected"),
    [
        ([1, 2, 2, 1], {}, "label 'y' has 2 whole numbers (1 in 2 rows, 2 in 2 rows), which may be classes or amounts"),
        ([f"{n:03}" for n in range(101)], {}, "label 'y' has 101 different strings ('000' in 1 rows, "),
        ([f"{n}" for n in range(1500)], {"problem": "multiclass"}, "label 'y' has more than 1000 values, such as "),
        ([1, 2, 3, 1], {"problem": "binary"}, "label 'y' has 3 values (1 in 2 rows, 2 in 1 rows, 3 in 1 rows)"),
        ([1.5, 2, 3, 1], {"problem": "multiclass"}, "has values that are not whole numbers, such as 1.5"),
        (["a", "a"], {}, "label 'y' is 'a' in all 2 rows of split 'train'; expected two classes or more: widen"),
        ([2.5, 2.5], {}, "label 'y' is 2.5 in all 2 rows of split 'train'; expected numbers that differ: widen"),
    ],
)
def test_constant_label_is_refused_with_advice(
    find: Find, train: list[Any], options: dict[str, Any], expected: str
) -> None:
    with pytest.raises(BadInput, match=re.escape(expected)):
        find(train, **options)


def test_classes_that_differ_in_case_or_blanks_are_reported(find: Find, caplog: pytest.LogCaptureFixture) -> None:
    find(["yes", "yes ", "No", "no", "n o", "maybe"])
    assert "the classes 'No', 'n o', 'no' differ only in case or blanks" in caplog.text
    assert (
        "the classes 'yes', 'yes ' differ only in case or blanks" in caplog.text and "maybe" not in caplog.messages[0]
    )


def test_training_split_must_have_every_class(find: Find, caplog: pytest.LogCaptureFixture) -> None:
    words = "label 'y': split 'train' has no row of 'c', 'd', which split 'eval' has in 3 rows; widen"
    with pytest.raises(BadInput, match=re.escape(words)):
        find(["a", "b"], eval=["a", "c", "d", "d"])
    with pytest.raises(BadInput, match="label 'y' is 'a' in all 2 rows of split 'train'"):
        find(["a", "a"], eval=["b", "a"])
    assert find(["a", "b", "c"], eval=["a"], classes=["a", "b", "c", "d"]).classes == ("a", "b", "c", "d")
    assert "label 'y': split 'eval' has no row of 'b', 'c'" in caplog.text
    assert "label 'y': no row has the class 'd', so the model cannot learn it" in caplog.text


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"problem": "regression", "classes": ["a", "b"]}, "classes are a, b, but problem is 'regression'"),
        ({"problem": "binary", "classes": ["a", "b", "c"]}, "there are 3 classes, but problem is 'binary'; expected 2"),
        ({"classes": ["a"]}, "problem is 'multiclass'; expected the names of at least 2 classes, found 1"),
        ({"classes": ["a", "b", "a"]}, "classes names 'a' twice"),
        ({"classes": list(range(1001))}, "classes has 1001 names, more than 1000"),
        ({"weight": "y"}, "weight is 'y', which is also the column of the label, the key or the time"),
        ({"more_labels": {"y": "regression"}}, "more_labels names 'y', the column of the label, the key, the time or"),
        ({"weight": "w", "more_labels": {"w": None}}, "more_labels names 'w', the column of the label"),
        ({"more_labels": {"z": ["a", "a"]}}, "more_labels['z']: classes names 'a' twice"),
    ],
)
def test_label_options_are_checked_during_dag_parsing(options: dict[str, Any], expected: str) -> None:
    with pytest.raises(BadInput, match=re.escape(expected)):
        PrepareOptions("m:f", "y", **options)


def test_each_further_label_has_its_own_options() -> None:
    values = PrepareOptions("m:f", "y", classes=["a", "b"], weight="w", more_labels={"z": "regression", "k": [3, 1, 2]})
    labels = [(each.label, each.problem, each.classes, each.weight) for each in values.of_labels]
    assert labels == [("y", None, ["a", "b"], "w"), ("z", "regression", None, None), ("k", None, [3, 1, 2], None)]
    assert PrepareOptions(**values.to_dict()).of_labels[2].named == Target("k", "multiclass", ("3", "1", "2"))
