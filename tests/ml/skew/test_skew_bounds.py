"""Bounds on which causes and repeated rows rest: the verdict on either side of each."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from airflow_hops.ml.distances.causes import cause_of, unusual
from airflow_hops.ml.distances.repeats import without_repeats
from airflow_hops.ml.distances.report import FeatureSkew
from airflow_hops.ml.distances.sides import Distribution, Kinds, Numbers, Side


def texts(**counts: int) -> Kinds:
    return Kinds(dict(counts))


def ids(first: int, kinds: int, each: int = 10) -> dict[str, int]:
    return {f"id{number}": each for number in range(first, first + kinds)}


def numbers(kinds: int) -> Numbers:
    return Numbers(np.repeat(np.arange(kinds, dtype=float), 20))


def cause(reference: Distribution, current: Distribution) -> str:
    return cause_of(reference, current, values_moved=True, missing_moved=False)[0]


@pytest.mark.parametrize(("rise", "is_fault"), [(0.45, False), (0.55, True)])
def test_missing_values_are_a_fault_from_a_rise_by_half(rise: float, is_fault: bool) -> None:
    skew = FeatureSkew("distance", 0.0, 0.05, drifted=True, missing_reference=0.1, missing_current=0.1 + rise)
    assert skew.fault == is_fault


@pytest.mark.parametrize(("new", "expected"), [(9, "covariate_shift"), (11, "new_category")])
def test_new_texts_are_a_fault_above_a_tenth(new: int, expected: str) -> None:
    assert cause(texts(a=500, b=500), texts(a=100 - new, c=new)) == expected


@pytest.mark.parametrize(("usual", "expected"), [(45, "constant"), (55, "covariate_shift")])
def test_the_usual_text_may_fill_a_window(usual: int, expected: str) -> None:
    assert cause(texts(a=usual, b=100 - usual), texts(a=300)) == expected


@pytest.mark.parametrize(("kinds", "expected"), [(55, "covariate_shift"), (65, "constant")])
def test_a_window_may_have_one_minute_of_an_hour(kinds: int, expected: str) -> None:
    assert cause(numbers(kinds), Numbers(np.full(300, 7.0))) == expected


@pytest.mark.parametrize(("kinds", "expected"), [(55, "new_category"), (65, "covariate_shift")])
def test_new_ids_are_usual_from_sixty_kinds(kinds: int, expected: str) -> None:
    old = ids(0, kinds)
    assert cause(Kinds(old), Kinds(old | ids(1_000, kinds // 2))) == expected


@pytest.mark.parametrize(("usual", "is_left_out"), [(45, False), (55, True)])
def test_a_number_of_half_of_the_rows_is_left_out(usual: int, is_left_out: bool) -> None:
    side = Numbers(np.sort(np.append(np.zeros(usual), np.arange(1.0, 101 - usual))))
    assert (unusual(side, side) is not None) == is_left_out


def repeated(rows: int, copies: int) -> Side:
    """Returns ``rows`` rows, of which ``copies`` are there twice."""
    random = np.random.default_rng(copies)
    values, other = random.normal(size=rows), random.normal(size=rows)
    order = random.permutation(np.append(np.arange(rows), np.arange(copies)))
    return Side(None, pa.table({"x": values[order], "y": other[order]}))


@pytest.mark.parametrize(("copies", "count"), [(40, 1_040), (70, 1_000)])
def test_repeats_are_left_out_from_a_twentieth(copies: int, count: int) -> None:
    left, notes = without_repeats(repeated(2_000, 0), repeated(1_000, copies))
    assert left.sample is not None and len(left.sample) == count and bool(notes) == (count == 1_000)


@pytest.mark.parametrize(("copies", "is_left_out"), [(170, False), (260, True)])
def test_repeats_are_left_out_above_twice_those_of_the_reference(copies: int, is_left_out: bool) -> None:
    assert bool(without_repeats(repeated(1_000, 100), repeated(1_000, copies))[1]) == is_left_out


@pytest.mark.parametrize(("times", "is_left_out"), [(8, True), (14, False)])
def test_repeats_of_one_row_are_a_finding_from_a_tenth(times: int, is_left_out: bool) -> None:
    once = repeated(1_000, 100).sample
    assert once is not None
    more = pa.concat_tables([once, *[once.slice(500, 1)] * times])
    assert bool(without_repeats(repeated(2_000, 0), Side(None, more))[1]) == is_left_out
