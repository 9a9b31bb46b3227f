"""Fleets with odd shops: exactly these fail, and the others are as in a fleet without them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import shops
from shops import replaced

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.extensions.fleet.core.source import SegmentSource
from airflow_hops.extensions.fleet.ml.columns import FOLDS, TrainingRows
from airflow_hops.extensions.fleet.ml.fleet_files import OpenFleet
from airflow_hops.extensions.fleet.ml.learners import learner_of
from airflow_hops.extensions.fleet.ml.segments import choose
from airflow_hops.ml.metrics.metrics import copies_of

ODD: dict[str, tuple[Callable[[pa.Table], pa.Table], str]] = {
    "empty number": (lambda t: replaced(t, "price", pa.nulls(len(t))), "'price' has no value"),
    "empty label": (lambda t: replaced(t, "label", pa.nulls(len(t))), "label is missing"),
    "no label": (lambda t: t.drop(["label"]), "no column 'label', the label"),
    "text in label": (
        lambda t: replaced(t, "label", pa.array(["soon"] * len(t))),
        "'label' is of the type string",
    ),
    "no feature": (lambda t: t.drop(["visits"]), "no column 'visits', which most files have"),
    "another column": (lambda t: t.append_column("till", t["price"]), "'till' is not in all files"),
    "text among numbers": (lambda t: replaced(t, "visits", pa.array(["many"] * len(t))), "'visits' is string"),
    "numbers among text": (lambda t: replaced(t, "day", pa.array(np.arange(len(t)))), "'day' is a number"),
    "empty weight": (lambda t: replaced(t, "weight", pa.nulls(len(t))), "weight is missing"),
    "zero weight": (lambda t: replaced(t, "weight", pa.array([0.0] * len(t))), "weight is not a number above 0"),
}


def _write(folder: Path, tables: dict[str, pa.Table], kind: str) -> dict[str, Any]:
    folder.mkdir()
    for name, table in tables.items():
        if kind == "csv":
            pyarrow.csv.write_csv(table, folder / f"{name}.csv")
        else:
            pq.write_table(table, folder / f"{name}.parquet")
    return SegmentSource(str(folder), label="label", weight="weight", problem="regression").to_dict()


def _compare_fleets(train: Any, opened: Callable[[Artifact], OpenFleet], folder: Path, draws: int) -> None:
    random, pending = np.random.default_rng(draws), list(ODD)
    for draw in range(draws):
        kind = ("csv", "parquet")[draw % 2]
        tables = {}
        for number in range(int(random.integers(7, 12))):
            rows = int(random.choice([1, 30, 60, 200]) if number else 200)
            table = shops.rows_of(f"shop {number}", rows, seed=draw)
            tables[f"shop {number}"] = table.append_column("weight", pa.array(random.choice([1.0, 5.0], rows)))
        pending = pending or list(ODD)
        odd = dict(zip(random.choice(sorted(tables)[1:], 3, replace=False).tolist(), pending[:3], strict=False))
        pending = pending[3:]
        changed = {name: ODD[odd[name]][0](table) if name in odd else table for name, table in tables.items()}
        source = _write(folder / f"all {draw}", changed, kind)
        fleet = opened(train(None, source=source, max_failed=0.5, run_id=f"all-{draw}"))
        for name, case in odd.items():
            entry = fleet.entries[name]
            assert entry["failed"] and entry["state"] == "pooled" and ODD[case][1] in entry["reason"], (kind, case)
            assert name in entry["reason"], "the file"
        assert {name for name, entry in fleet.entries.items() if entry["failed"]} == {*odd}
        others = {name: table for name, table in tables.items() if name not in odd}
        source = _write(folder / f"others {draw}", others, kind)
        without = opened(train(None, source=source, run_id=f"others-{draw}"))
        assert without.fleet.description.encoding == fleet.fleet.description.encoding
        pooled = [each.fleet.payload(each.fleet.description.pooled) for each in (fleet, without)]
        assert pooled[0] == pooled[1]
        for name in others:
            assert fleet.segment(name)[1:] == without.segment(name)[1:], (kind, odd, name)


def test_odd_shops_fail_alone(train: Any, opened: Callable[[Artifact], OpenFleet], tmp_path: Path) -> None:
    _compare_fleets(train, opened, tmp_path, 4)


@pytest.mark.scheduled(part="campaigns")
def test_odd_shops_fail_alone_in_many_fleets(
    train: Any, opened: Callable[[Artifact], OpenFleet], tmp_path: Path
) -> None:
    _compare_fleets(train, opened, tmp_path, 100)


def test_copies_of_rows_give_no_segment_a_model_of_its_own() -> None:
    random, learner = np.random.default_rng(1), learner_of("linear", "binary", 2, 0)
    own = {"as they are": 0, "copied": 0}
    for _ in range(60):
        matrix = random.normal(size=(24, 3))
        labels = (matrix[:, 0] + random.normal(size=24) > 0).astype(float)
        rows = TrainingRows(matrix, labels, np.ones(24), np.arange(24) * 7919)
        pooled = dict.fromkeys(range(FOLDS), np.array([[0.0, 1.7, 0.0, 0.0]]))
        for name, each in (("as they are", rows), ("copied", rows.where(np.repeat(np.arange(24), 20)))):
            own[name] += choose(learner, each, pooled, 10, 3.0).strategy is not None
    assert own["copied"] <= own["as they are"] + 2
    few, labels = random.integers(0, 12, 300), random.integers(0, 2, 300)
    assert copies_of(12 * labels + few, few) is None
