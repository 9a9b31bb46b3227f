"""The benchmark of power and false alarms: its shapes and changes, and its figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.drift_power import changed_together
from benchmarks.measurement import buildings, drift_figures
from benchmarks.measurement.buildings import DRIFT_DAYS, FEATURES, YEAR_HOURS
from benchmarks.measurement.drift_shapes import HARMLESS_OF, SHAPES, draw_table, population_distance


@pytest.mark.parametrize("changed", [*changed_together(), dict(HARMLESS_OF)])
def test_changes_touch_only_their_shapes(changed: dict[str, str]) -> None:
    for name in changed:
        before, after = (draw_table(np.random.default_rng(3), 400, each) for each in (None, {name: changed[name]}))
        first = list(SHAPES).index(name)
        assert after.select(list(SHAPES)[:first]).equals(before.select(list(SHAPES)[:first]))
        assert len(after[name]) == 400
        harmless = HARMLESS_OF.get(name) == changed[name]
        assert harmless or (after[name].type == before[name].type and not after[name].equals(before[name]))


def test_distance_of_known_changes_is_exact() -> None:
    assert population_distance("normal", "+0.3 deviations") == pytest.approx(0.119, abs=0.005)
    assert population_distance("few texts", "value renamed") == pytest.approx(0.4, abs=0.005)
    assert population_distance("flag", "5 points missing") == pytest.approx(0.05, abs=0.005)
    assert population_distance("lists of numbers", "95% of lists empty") == pytest.approx(0.95 * 6 / 7, abs=0.005)


def test_alarms_of_a_building_are_counted(tmp_path: Path) -> None:
    start = YEAR_HOURS + 24 * 100
    columns: dict[str, Any] = {name: np.zeros(2 * YEAR_HOURS) for name in ("time", *FEATURES, *DRIFT_DAYS)}
    columns["abrupt"][start : start + 24 * DRIFT_DAYS["abrupt"]] = 1
    pq.write_table(pa.table(columns), tmp_path / "building-0.parquet")
    (tmp_path / "building-0.json").write_text(json.dumps(dict.fromkeys(DRIFT_DAYS, start)))
    building = buildings.judge_building(
        tmp_path, 0, lambda training: lambda week: week["consumption"].to_numpy().max() > 0
    )
    assert sum(building["unchanged"]) == 0
    # A window reaches back six more days than the one that ends with the drift.
    assert building["abrupt"] == {"late_days": 1, "longer_days": 6}
    assert building["fault"] == {"late_days": None, "longer_days": None}
    assert buildings.figures_of([building])["gradual"]["found"] == 0


def test_power_and_false_alarms_are_counted_by_way() -> None:
    unchanged = {"rows": 1_500, "changed": {}}
    changed = {"rows": 1_500, "changed": {"normal": "x 1.3", "lists of texts": "fifth longer"}}
    answers = [
        (unchanged, {"with schema": [], "Evidently": ["flag"]}),
        (changed, {"with schema": ["normal"], "Evidently": ["normal"]}),
        (changed, {"with schema": [], "Evidently": []}),
    ]
    alarms = {cell["way"]: cell["share"] for cell in drift_figures.false_alarms_of(answers)}
    assert alarms == {"with schema": 0, "Evidently": 1}
    power = drift_figures.power_of(answers, {("normal", "x 1.3"): 0.495})
    figures = {"power": power}
    assert [cell["shape"] for cell in power if cell["way"] == "Evidently"] == ["normal"]
    assert [(c["shape"], c["power"]) for c in drift_figures.missed_of(figures, "with schema")] == [("normal", 0.5)]
    earlier = {"power": [{**cell, "power": 0.75} for cell in power if cell["shape"] == "normal"]}
    assert [cell["earlier"] for cell in drift_figures.below_of(figures, earlier, "with schema")] == [0.75]
