"""Statistics of features through the API: their numbers, slices, weights, distances, and what cannot be asked."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import TypeAdapter

from airflow_hops.core.artifacts.page_files import FeatureDetail, FeatureTable
from airflow_hops.web.artifacts.statistics import Distances, StatisticsDatasets
from web.conftest import Api

pytestmark = pytest.mark.runtime


class Statistics:
    """Asks for statistics of a run of the DAG ``pages_statistics``."""

    def __init__(self, api: Api, run: Any) -> None:
        self.api, self.run = api, run

    def address(self, task: str, kind: str = "statistics") -> str:
        """An artifact as a query names it."""
        return f"{kind}/pages_statistics/{task}/-1/{self.run.run_id}"

    def get(self, verb: str, task: str, kind: str = "statistics", **query: Any) -> Any:
        """The answer to a query."""
        path = f"{self.api.artifact_path(task, kind, self.run)}/statistics"
        return self.api.get(f"{path}{verb}", "viewer", params=query)

    def feature(self, feature: str, **query: Any) -> Any:
        """One feature in full."""
        answer = self.get("/feature", "before", dataset="train", feature=feature, **query)
        TypeAdapter(FeatureDetail).validate_json(answer.text)
        return answer.json()


@pytest.fixture(scope="module")
def statistics(api: Api, described: Any) -> Statistics:
    return Statistics(api, described)


def _rows(table: dict[str, Any]) -> dict[str, dict[str, Any]]:
    columns = {name: values for name, values in table.items() if isinstance(values, list)}
    return {
        name: {column: values[index] for column, values in columns.items()} for index, name in enumerate(table["names"])
    }


def test_the_data_sets_of_an_artifact_are_its_splits_and_their_slices(statistics: Statistics) -> None:
    answer = statistics.get("", "before")
    result = StatisticsDatasets.model_validate_json(answer.text)
    (train,) = result.datasets
    assert (train.name, train.rows, train.weighted_rows) == ("train", 1000, 1500)
    assert train.slices == {"word_<b>rare</b>": 100, "word_usual": 900}
    assert (result.label, result.time, result.window) == ("small", None, None)
    sides = StatisticsDatasets.model_validate_json(statistics.get("", "compare", "skew").text).datasets
    assert [(each.name, each.rows) for each in sides] == [("reference", 1000), ("current", 1000)]


def test_a_table_has_the_numbers_of_every_feature(statistics: Statistics) -> None:
    answer = statistics.get("/features", "before", dataset="train")
    TypeAdapter(FeatureTable).validate_json(answer.text)
    rows = _rows(answer.json())
    size, small, word, half = (rows[name] for name in ("size", "small", "word", "half"))
    assert (size["count"], size["missing"], size["zeros"], size["mean"]) == (1000, 0, 10, 49.5)
    assert size["quantiles"][0] == 0 and size["quantiles"][-1] == 99
    assert size["quantiles"][5] == pytest.approx(50, abs=1.5)
    assert size["std"] == pytest.approx(28.8661, abs=1e-3)
    low, high, shares = size["histogram"]
    assert (low, high) == (0, 99)
    assert shares == pytest.approx([1000] * 10, abs=60)
    assert small["histogram"][:2] == [-0.5, 3.5]
    assert small["histogram"][2] == pytest.approx([2500] * 4, abs=20)
    assert small["non_uniformity"] == pytest.approx(0.4, abs=0.01), "4 of TFDV's 10 buckets are equally full"
    assert word["top_values"] == [["usual", 900], ["<b>rare</b>", 100]]
    assert (word["unique"], word["average_length"], word["kinds"]) == (2, 5.6, "string")
    assert word["non_uniformity"] == pytest.approx(1 - 0.468996, abs=1e-3)
    assert (half["nan"] + half["missing"], rows["huge"]["infinite"]) == (500, 1)
    assert (rows["one"]["unique"], rows["one"]["non_uniformity"], rows["code"]["unique"]) == (1, 1, 1000)
    assert (rows["list"]["count"], rows["list"]["values_per_row"]) == (1000, 3)


def test_slices_and_weights_have_separate_tables(statistics: Statistics) -> None:
    rare = statistics.get("/features", "before", dataset="train", slice="word_<b>rare</b>").json()
    assert rare["rows"] == 100
    assert _rows(rare)["word"]["top_values"] == [["<b>rare</b>", 100]]
    weighted = _rows(statistics.get("/features", "before", dataset="train", weighted=True).json())
    assert weighted["small"]["mean"] == pytest.approx((0 + 1 + 2 + 3 * 3) / 6)
    assert weighted["small"]["histogram"][2][3] == pytest.approx(5000, abs=20)
    assert weighted["one"]["top_values"] == [["same", 1500]]
    unknown = statistics.get("/features", "before", dataset="train", slice="word_none")
    assert (unknown.status_code, "expected one of the 2" in unknown.text) == (422, True)


def test_one_feature_has_full_details(statistics: Statistics) -> None:
    size = statistics.feature("size")
    assert sum(count for _, _, count in size["standard"]) == pytest.approx(1000)
    curve = size["curve"]
    assert (curve["values"][0], curve["values"][-1], curve["shares"][0], curve["shares"][-1]) == (0, 99, 0, 1)
    assert curve["values"] == sorted(curve["values"]) and curve["shares"] == sorted(curve["shares"])
    code = statistics.feature("code")
    assert len(code["values"]) + code["other_values"] == 1000
    assert statistics.feature("word")["values"] == [["usual", 900], ["<b>rare</b>", 100]]
    assert statistics.feature("list")["values_per_row"] == [3, 3, 3]
    assert statistics.feature("small", weighted=True)["mean"] == pytest.approx(2)


def test_distances_are_computed_or_come_from_the_skew_report(statistics: Statistics) -> None:
    pair = {"dataset": "train", "to": statistics.address("after"), "to_dataset": "train"}
    answer = statistics.get("/distances", "before", **pair)
    result = Distances.model_validate_json(answer.text)
    by_name = dict(zip(result.names, zip(result.measures, result.scores, result.drifted, strict=True), strict=True))
    assert by_name["size"] == ("kolmogorov_smirnov", 1.0, None), "1,000 rows are too few to judge by a threshold"
    assert by_name["word"] == ("l_infinity", 0.9, None)
    assert by_name["small"] == ("kolmogorov_smirnov", 0.0, None)
    assert by_name["code"] == ("l_infinity", 0.0, None)
    assert not result.reported
    one = statistics.get("/distances", "before", **pair, feature="size").json()
    assert one["names"] == ["size"]
    assert one["every"] == {"kolmogorov_smirnov": 1.0}
    sides = {"dataset": "reference", "to": statistics.address("compare", "skew"), "to_dataset": "current"}
    reported = statistics.get("/distances", "compare", "skew", **sides).json()
    report = json.loads(_report(statistics))["features"]
    assert reported["reported"]
    scores = dict(zip(reported["names"], reported["scores"], strict=True))
    assert {name: scores[name] for name in report} == {name: finding["score"] for name, finding in report.items()}
    assert dict(zip(reported["names"], reported["p_values"], strict=True))["size"] == report["size"]["p_value"]


def _report(statistics: Statistics) -> str:
    return (statistics.api.folder("compare", "skew", statistics.run) / "report.json").read_text()


def test_unreadable_data_is_not_compared(statistics: Statistics) -> None:
    query = {"dataset": "train", "to": statistics.address("after"), "to_dataset": "train"}
    path = f"{statistics.api.artifact_path('statistics', 'statistics')}/statistics/distances"
    assert statistics.api.get(path, "only:pages,pages_statistics", params=query).status_code == 200
    statistics.api.refused(path, 403, "Forbidden", "only:pages", params=query)
