"""Drift of segments: false discoveries, power, findings about groups, and captured rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import shops
from scipy import stats

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.errors import BadInput
from airflow_hops.core.store import ArtifactStore
from airflow_hops.extensions.fleet.ml import skew
from airflow_hops.extensions.fleet.ml.reference import counted
from airflow_hops.extensions.fleet.ml.skew import SegmentTest, find, two_samples

FEATURES = 10


def simulated(seed: int, segments: int, rows: int, drifted: float) -> tuple[list[SegmentTest], set[tuple[str, str]]]:
    """Tests of segments with features of several shapes, and those of which are of changed features."""
    generator = np.random.default_rng(seed)
    tests, changed = [], set[tuple[str, str]]()
    for segment in map(str, range(segments)):
        has_drifted = generator.random() < drifted
        for number in range(FEATURES):
            shift = 0.7 if has_drifted and number < 2 else 0.0

            def draw(count: int, shift: float, number: int = number) -> Any:
                shapes = (
                    lambda: generator.normal(size=count) + shift,
                    lambda: generator.exponential(size=count) * (1 + shift),
                    lambda: generator.poisson(2 + 2 * shift, count).astype(float),
                    lambda: generator.zipf(2.0 + shift, count).clip(max=30).astype(float),
                )
                return shapes[number % 4]().astype(np.float32)

            reference, current = draw(1000, 0.0), draw(rows, shift)
            edges = np.unique(np.quantile(reference, np.arange(1, 10) / 10, method="lower"))
            statistic, freedom = two_samples(counted(reference, edges), counted(current, edges))
            if freedom:
                groups = {"region": f"region {int(segment) % 10}"}
                tests.append(SegmentTest(segment, f"feature {number}", statistic, freedom, groups))
            if shift:
                changed.add((segment, f"feature {number}"))
    return tests, changed


def test_false_discoveries_are_at_most_a_twentieth() -> None:
    shares, found_any, powers = [], [], []
    for seed in range(24):
        drifted = 0.02 if seed % 2 else 0.0
        tests, changed = simulated(seed, 200, (80, 300)[seed // 2 % 2], drifted)
        findings = find(tests, 0.05)
        named = {(segment, column) for each in findings for segment in each.segments for column in each.columns}
        shares.append(len(named - changed) / max(len(named), 1))
        if drifted and changed:
            powers.append(len(named & changed) / len(changed))
        elif not drifted:
            found_any.append(bool(named))
    # Of a share that is 0.05 on average at most: three standard errors above.
    assert np.mean(shares) <= 0.05 + 3 * np.std(shares) / np.sqrt(len(shares))
    assert np.mean(shares) <= 0.1
    # A fleet without drift has a finding with a chance of 0.05: 4 or more of 12 would be seen once in 450 times.
    assert sum(found_any) <= 3
    assert np.mean(powers) > 0.5


@pytest.mark.parametrize(("share", "strength"), [(0.02, 20.0), (0.02, 60.0), (0.1, 15.0), (0.4, 15.0)])
@pytest.mark.parametrize("columns", [1, 6])
def test_few_of_the_named_segments_are_unchanged(share: float, strength: float, columns: int) -> None:
    """However many features of a segment change together, and however weakly."""
    shares = []
    for seed in range(10):
        generator = np.random.default_rng(seed)
        changed = generator.permutation(500)[: round(500 * share)]
        statistics = generator.chisquare(9, (500, 6))
        statistics[changed, :columns] = generator.noncentral_chisquare(9, strength, (len(changed), columns))
        tests = [
            SegmentTest(str(segment), f"feature {number}", float(statistics[segment, number]), 9, {})
            for segment in range(500)
            for number in range(6)
        ]
        findings = find(tests, 0.05)
        named = {segment for finding in findings for segment in finding.segments}
        shares.append(len(named - set(map(str, changed))) / max(len(named), 1))
        assert not any(finding.group for finding in findings)  # most segments have not changed
    assert np.mean(shares) <= 0.05 + 3 * np.std(shares) / np.sqrt(len(shares))


def test_p_values_of_unchanged_segments_are_uniform() -> None:
    tests, _ = simulated(7, 400, 200, 0.0)
    p_values = stats.chi2.sf([test.statistic for test in tests], [test.freedom for test in tests])
    assert stats.kstest(p_values, "uniform").statistic < 0.04
    for bound in (0.1, 0.01, 0.001):
        count = (p_values <= bound).sum()
        assert count <= stats.binom.ppf(0.999, len(p_values), bound)


def _shifted(tests: list[SegmentTest], which: Callable[[SegmentTest], bool], by: float) -> list[SegmentTest]:
    return [SegmentTest(t.segment, t.feature, t.statistic + by, t.freedom, t.groups) if which(t) else t for t in tests]


def test_change_of_a_whole_region_is_one_finding() -> None:
    tests, _ = simulated(3, 200, 200, 0.0)
    is_north = lambda test: test.groups["region"] == "region 4" and test.feature == "feature 0"  # noqa: E731
    strong = find(_shifted(tests, is_north, 100.0), 0.05)
    assert [(finding.group, finding.columns) for finding in strong if finding.group] == [
        ("region=region 4", ["feature 0"])
    ]
    assert len(strong[0].segments) == 20 and "20 of 20 segments" in strong[0].words
    weak = find(_shifted(tests, lambda test: test.feature == "feature 0", 8.0), 0.05)
    assert [(finding.group, finding.columns) for finding in weak if finding.group] == [("all segments", ["feature 0"])]
    assert len(weak[0].segments) == 200 and "a little in most of 200 segments" in weak[0].words
    everywhere = find(_shifted(tests, lambda test: test.feature == "feature 1", 60.0), 0.05)
    assert [finding.group for finding in everywhere if finding.group] == ["all segments"]
    assert len(everywhere) <= 1 + 0.1 * 200
    alone = find(_shifted(tests, lambda test: test.segment == "14", 80.0), 0.05)
    assert not any(finding.group for finding in alone)
    assert list(alone[0].segments) == ["14"] and len(alone[0].columns) == FEATURES


@pytest.fixture
def capture(tmp_path: Path) -> Callable[[pa.Table, int], None]:
    """Writes rows as the server captures them."""
    moments: Iterator[datetime] = (datetime(2026, 1, 1, tzinfo=UTC) + timedelta(hours=n) for n in range(100))

    def write(rows: pa.Table, version: int = 1) -> None:
        folder, moment = tmp_path / "captured" / "shops", next(moments)
        folder.mkdir(parents=True, exist_ok=True)
        columns = {f"input.{name}": rows[name] for name in rows.column_names if name != "label"}
        facts = {
            "version": [version] * len(rows),
            "captured_at": pa.array([moment] * len(rows), pa.timestamp("us", "UTC")),
        }
        pq.write_table(pa.table({**columns, **facts}), folder / f"{moment:%Y%m%dT%H%M%S.%fZ}-v{version}-1.parquet")

    return write


@pytest.fixture
def compare(run_stage: Callable[..., Any], tmp_path: Path) -> Callable[..., Artifact]:
    services = {"serving_capture_path": str(tmp_path / "captured")}

    def run(**options: Any) -> Artifact:
        return run_stage(skew.run, kind="fleet_skew", services=services, task_id="watch", model_name="shops", **options)

    return run


def test_drifted_segments_are_found_and_trained_again(
    store: ArtifactStore, train: Any, serve: Any, capture: Any, compare: Any
) -> None:
    sizes = [(f"shop {number:02}", 400) for number in range(30)]
    options = {"columns": ["price", "visits", "day"]}
    fleet = train(shops.tables(sizes), groups=["region"], **options)
    serve(fleet, 1)
    capture(pa.concat_tables([shops.rows_of(shop, 20, seed=50) for shop, _ in sizes]))
    waiting = compare()
    assert waiting.properties["verdict"] == "insufficient"
    rows = [
        shops.rows_of(shop, 200, seed=51, shift=3.0 if shop in ("shop 03", "shop 11") else 0.0) for shop, _ in sizes
    ]
    capture(pa.concat_tables([*rows, shops.rows_of("shop new", 70, seed=51)]))
    comparison = compare()
    assert (comparison.properties["verdict"], comparison.properties["segments"]) == ("drift", ["shop 03", "shop 11"])
    assert comparison.rows["captured"].rows_in == 30 * 220 + 70  # those that waited, too
    assert comparison.rows["captured"].rows_rejected == 70
    report = json.loads((store.local(comparison) / "findings.json").read_text())
    assert [finding["columns"] for finding in report["findings"]] == [["price"], ["price"]]
    assert report["segments"] == 30 and report["tests"] == 90
    capture(pa.concat_tables([shops.rows_of(shop, 200, seed=52) for shop, _ in sizes]))
    assert compare().properties["verdict"] == "stable"
    capture(pa.concat_tables([shops.rows_of(shop, 200, seed=53) for shop, _ in sizes if shop != "shop 05"]))
    silence = compare()
    assert (silence.properties["verdict"], silence.properties["segments"]) == ("drift", [])
    assert silence.properties["silent"] == ["shop 05"]
    (finding,) = json.loads((store.local(silence) / "findings.json").read_text())["findings"]
    assert finding["words"] == "segment shop 05 has sent nothing; about 193 rows were expected"
    again = train(shops.tables(sizes, seed=4), before=fleet, skew=comparison, **options)
    assert again.metrics["trained"] == 2


def test_rows_without_an_input_are_refused(train: Any, serve: Any, capture: Any, compare: Any) -> None:
    with pytest.raises(BadInput, match="shops"):
        compare()
    fleet = train(shops.tables([("shop 1", 300)]))
    serve(fleet, 1)
    capture(shops.rows_of("shop 1", 100).drop(["price"]))
    with pytest.raises(BadInput, match=r"parquet: there is no column 'input.price'; it has"):
        compare()
