"""Rehearsals of a shop's monitor: what is found of planted faults, what is said of them, and what is left alone."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from airflow_hops.core.artifacts.artifact import Producer
from airflow_hops.core.errors import BadInput
from airflow_hops.core.monitor_reports import note_report
from airflow_hops.core.skew import SkewProperties, SkewReference
from airflow_hops.extensions.rehearsal.core.rehearsal import Rehearsal, RehearsedFault
from airflow_hops.extensions.rehearsal.ml import search
from airflow_hops.extensions.rehearsal.ml.faults import Target, faults_of, faults_of_rows
from airflow_hops.extensions.rehearsal.ml.search import first_found
from tests.ml.extensions.rehearsal.shop import Shop, draw
from tests.ml.world import World

POLICY = {"kind": "policy", "when": {"kind": "drift", "consecutive": 2}}


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    return Shop(World(tmp_path_factory.mktemp("shop")))


@pytest.fixture(scope="module")
def report(shop: Shop) -> Rehearsal:
    """A rehearsal over twenty days of 1,500 requests, by a policy that needs two comparisons with drift."""
    return shop.rehearse(shop.captured(20, 1_500), tries=20, policy=POLICY)


def fault_of(report: Rehearsal, feature: str, fault: str) -> RehearsedFault:
    return next(each for each in report.faults if (each.feature, each.fault) == (feature, fault))


def planted(shop: Shop, fault: RehearsedFault, size: float, windows: int, rows: int) -> float:
    """Returns in how many new windows with a fault the monitor's own comparison finds it."""
    from airflow_hops.core.skew import SkewOptions
    from airflow_hops.ml.distances.detect import compare_sides, side_of
    from airflow_hops.ml.schema import SCHEMA_FILE, load_schema
    from airflow_hops.ml.statistics import STATISTICS_FILE

    store, folder = shop.world.store, shop.world.store.local(shop.statistics)
    reference = side_of(folder / "train" / STATISTICS_FILE)
    schema = load_schema(store.local(store.manifest(shop.schema.uri).reference(shop.schema.uri)) / SCHEMA_FILE)
    assert reference.sample is not None
    plant = next(
        each for each in faults_of(reference.sample, ["tenure", "plan", "amount", "calls"])
        if each.kind == fault.fault and each.features[0] == fault.feature
    )  # fmt: skip
    random, hits = np.random.default_rng(7), 0
    for _ in range(windows):
        table = draw(random, rows).drop(["left"])
        columns = plant.plant(Target(table, table, random.permutation(rows)), size)
        for name, column in columns.items():
            table = table.set_column(table.column_names.index(name), name, column)
        drifted = compare_sides(reference, side_of(table), schema, SkewOptions(model_name="churn")).drifted
        hits += bool(set(drifted) & set(columns))
    return hits / windows


@pytest.mark.parametrize(
    ("feature", "fault"),
    [("tenure", "shift"), ("amount", "units"), ("plan", "vanished")],
)
def test_sizes_that_are_found_are_found_in_new_windows(shop: Shop, report: Rehearsal, feature: str, fault: str) -> None:
    result = fault_of(report, feature, fault)
    assert result.size is not None
    rows = report.windows[0].rows
    assert planted(shop, result, 1.3 * result.size, 20, rows) >= 0.8
    assert planted(shop, result, result.size / 1.5, 20, rows) <= 0.8
    at_size = next(each for each in result.curve if each.size >= result.size)
    assert at_size.power[0] == pytest.approx(planted(shop, result, at_size.size, 40, rows), abs=0.25)


def test_report_tells_sizes_times_and_decisions(report: Rehearsal) -> None:
    shift = fault_of(report, "tenure", "shift")
    assert (shift.after, shift.verdict, shift.retraining) == (2, "drift", True)
    assert shift.size is not None
    assert 0.08 < shift.size < 0.25
    units = fault_of(report, "amount", "units")
    assert units.cause == "covariate_shift"  # of few rows, it looks like a change of the world
    assert units.fault_from is not None
    assert units.fault_from > 0.3
    slow = fault_of(report, "tenure", "slow_drift")
    assert slow.after is not None
    assert slow.after >= shift.size * 28
    assert {each.state for each in report.features} == {"compared"}
    assert report.false_alarms[0] == 0.0
    assert (report.rows, report.every_s, len(report.windows), report.metric) == ("captured", 86_400.0, 20, "auc")


def test_faults_are_sorted_by_what_slips_through(report: Rehearsal) -> None:
    first, *others = report.faults
    assert (first.fault, first.size) == ("labels", None)  # the policy does not watch the performance
    effects = [each.effect or 0.0 for each in others]
    assert effects == sorted(effects, reverse=True)
    assert others[0].fault in ("stale", "repeated")  # of whole rows
    stale = fault_of(report, "", "stale")
    assert (stale.size, stale.after, stale.retraining) == (None, None, False)
    assert stale.loss is not None
    assert stale.loss < -0.1
    assert {each.effect for each in report.faults if each.feature == "amount" and each.fault != "swapped"} == {0.0}


def test_rehearsal_changes_nothing_but_its_report(shop: Shop) -> None:
    base = shop.captured(4, 1_100, seed=3)

    def digests() -> dict[str, str]:
        files = [file for folder in (base, shop.world.folder / "store") for file in folder.rglob("*") if file.is_file()]
        return {str(file): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}

    unchanged = digests()
    shop.rehearse(base, tries=5, features=["plan"])
    changed = digests()
    assert {name: changed[name] for name in unchanged} == unchanged
    assert all("/rehearsal/" in name for name in changed.keys() - unchanged.keys())


def test_same_rows_and_options_make_the_same_report(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    base = shop.captured(4, 1_100, seed=3)
    one = shop.rehearse(base, tries=6, features=["calls"])
    monkeypatch.setattr(search.os, "sched_getaffinity", lambda process: {0, 1, 2, 3, 4})
    assert shop.rehearse(base, tries=6, features=["calls"]) == one
    assert shop.rehearse(base, tries=6, features=["calls"], seed=1) != one


def test_without_captured_rows_held_out_rows_are_used(shop: Shop) -> None:
    report = shop.rehearse(None, tries=5, features=["plan"])
    assert (report.rows, len(report.windows), report.windows[0].rows) == ("training", 8, 1_000)
    assert "held-out rows" in report.notes[-3]
    with pytest.raises(BadInput, match="serving_capture_path"):
        shop.rehearse(None, rows="captured")
    with pytest.raises(BadInput, match=r"1 windows of captured requests of 'churn' have the 1,000 rows .* at least 2"):
        shop.rehearse(shop.captured(1, 1_100, seed=4), rows="captured")


def test_few_rows_wait_for_the_next_window_as_in_the_monitor(shop: Shop) -> None:
    report = shop.rehearse(shop.captured(12, 400, seed=5), tries=5, features=["plan"])
    assert [window.rows for window in report.windows] == [1_200] * 4


def test_windows_are_those_that_the_monitor_has_compared(tmp_path: Path) -> None:
    shop = Shop(World(tmp_path), rows=3_000)
    base = shop.captured(6, 600, seed=6)
    names = sorted(file.name for file in (base / "churn").iterdir())
    origin = SkewReference(shop.statistics.uri, shop.statistics.fingerprint, model="churn", version=1)
    for number in range(3):
        ends = f"2026-03-{2 * number + 3:02}T00:00:00+00:00"
        skew = SkewProperties(
            "stable", reference=origin, window_end=ends, captured_files=(names[2 * number], names[2 * number + 1])
        )
        artifact = shop.world.artifact("skew", lambda folder: (folder / "x").write_text("") and None, **skew.to_dict())
        note_report(shop.world.store, "churn", artifact, [1], ends, Producer("tests", "run", "skew"))
    report = shop.rehearse(base, tries=5, features=["plan"])
    assert [(window.rows, window.end) for window in report.windows] == [
        (1_200, f"2026-03-{day:02}T00:00:00+00:00") for day in (3, 5, 7)
    ]
    assert report.every_s == 2 * 86_400


def test_weekends_are_loud_and_the_advice_is_quiet(shop: Shop) -> None:
    def weekend(table: pa.Table, day: int) -> pa.Table:
        moved = pc.add(table["tenure"], pa.scalar(1.5 if day % 7 in (0, 1) else 0.0, pa.float32()))
        return table.set_column(0, "tenure", moved)

    base = shop.captured(21, 1_500, seed=8, change=weekend)
    report = shop.rehearse(base, tries=5, features=["tenure"])
    loud = report.features[0]
    assert (loud.name, loud.state) == ("tenure", "loud")
    assert loud.false_alarms[0] == pytest.approx(6 / 21, abs=1e-6)
    threshold = json.loads(loud.advice.partition("thresholds=")[2].rstrip(")").replace("'", '"'))
    quiet = shop.rehearse(base, tries=5, features=["tenure"], skew={"thresholds": threshold})
    assert not any("tenure" in window.drifted for window in quiet.windows)


def test_faults_are_not_planted_into_what_drifts_already(shop: Shop) -> None:
    def moved(table: pa.Table, day: int) -> pa.Table:
        return table.set_column(3, "calls", pc.add(table["calls"], 2))

    report = shop.rehearse(shop.captured(4, 1_100, seed=9, change=moved), tries=5, features=["calls", "plan"])
    assert {each.name: each.state for each in report.features} == {"calls": "drifting", "plan": "compared"}
    assert not [each for each in report.faults if each.feature == "calls"]
    assert any("calls: drifted in most" in note for note in report.notes)
    assert report.requests == 3  # as many as a policy makes in a row without a new champion


def test_flipped_labels_are_found_by_the_performance_alone(shop: Shop) -> None:
    base = shop.captured(4, 1_100, seed=3)
    without = fault_of(shop.rehearse(base, tries=5, features=["plan"]), "", "labels")
    assert (without.size, without.why) == (None, "the policy does not watch the performance")
    policy = {"kind": "policy", "when": {"kind": "performance", "metric": "auc", "drop": 0.0}}
    flipped = fault_of(shop.rehearse(base, tries=10, features=["plan"], policy=policy), "", "labels")
    assert flipped.size is not None
    assert flipped.size < 0.3
    assert flipped.retraining
    assert flipped.after in (1, 2)
    assert flipped.loss is not None
    assert flipped.loss < 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"features": ["plans"]}, "features is 'plans', expected one of .*did you mean 'plan'"),
        ({"tries": 1}, "tries is 1, expected at least 5"),
        ({"rows": "all"}, "rows is 'all', expected 'captured', 'training' or None"),
        ({"skew": {"alhpa": 0.1}}, "skew is 'alhpa', expected one of .*did you mean 'alpha'"),
        ({"policy": {"kind": "drift"}}, "policy"),
    ],
)
def test_wrong_options_are_refused(shop: Shop, options: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInput, match=rf"(?i){words}"):
        shop.rehearse(None, **options)


def test_each_fault_changes_its_features_alone_and_more_rows_with_its_size() -> None:
    random = np.random.default_rng(0)
    rows, earlier = draw(random, 400).drop(["left"]), draw(random, 400).drop(["left"])
    names = rows.column_names
    target = Target(rows, earlier, random.permutation(400))
    kinds = set()
    for fault in [*faults_of(rows, names), *faults_of_rows(names, rows)]:
        changed = np.zeros(400, bool)
        for size in fault.sizes[:: len(fault.sizes) // 4]:
            columns = fault.plant(target, size)
            assert set(columns) == set(fault.features or names)
            now = np.zeros(400, bool)
            for name, column in columns.items():
                assert len(column) == 400
                assert column.type == rows[name].type
                now |= np.array(column.to_pylist(), object) != np.array(rows[name].to_pylist(), object)
            assert fault.unit != "share" or not (changed & ~now).any()
            changed = now
        assert changed.any(), fault.kind
        kinds.add(fault.kind)
    assert kinds == {
        "shift", "scale", "units", "default", "missing", "stale", "swapped", "new_category", "vanished", "encoding",
        "truncated", "repeated", "shifted_columns",
    }  # fmt: skip


def test_first_found_place_is_that_of_a_walk_from_any_guess() -> None:
    for count in (1, 2, 5, 17):
        for first in range(count + 1):
            for guess in range(-1, count + 2):
                asked: list[int] = []

                def found(place: int, first: int = first, asked: list[int] = asked) -> bool:
                    asked.append(place)
                    return place >= first

                assert first_found(found, count, guess) == first
                assert len(asked) == len(set(asked)) <= 2 * np.log2(count + 1) + 3


def test_shares_of_tries_have_wilson_intervals() -> None:
    assert search.share_of(8, 10) == pytest.approx((0.8, 0.490162, 0.943318), abs=1e-5)
    assert replace(Rehearsal("m", 1, "captured", 1.0), false_alarms=search.share_of(0, 0)).false_alarms == (0, 0, 1)
