"""The module ``pipeline`` of notebooks, called in this process."""

from __future__ import annotations

import html
import json
import re
from typing import Any

import pandas as pd
import pytest

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.errors import BadInput
from airflow_hops.core.store import ArtifactStore
from airflow_hops.extensions.notebooks import pipeline
from airflow_hops.ml.step import context
from tests import flights_examples

CRAFTED = "</script><b>"
TRAIN = pd.DataFrame({"late": [0, 1, 1], "carrier": [CRAFTED, None, CRAFTED], "distance": [100.0, 200.0, None]})


@pytest.fixture
def examples(store: ArtifactStore, make_context: Any, monkeypatch: pytest.MonkeyPatch) -> Artifact:
    """The examples of a notebook that has begun."""
    examples = flights_examples.write_examples(store, {"train": TRAIN, "eval": TRAIN[:1]})
    monkeypatch.setattr(context, "_current", [make_context(kind="notebook", task_id="explore", examples=examples)])
    return examples


def test_artifacts_are_found_by_role_reference_and_address(examples: Artifact, store: ArtifactStore) -> None:
    same = [pipeline.artifact(which) for which in ("examples", examples.to_dict(), examples.uri, examples)]
    same.append(pipeline.artifact(examples.uri.removeprefix(f"{store.root}/")))
    assert {each.fingerprint for each in same} == {examples.fingerprint}
    with pytest.raises(BadInput, match="no input 'model' \\(there are: examples\\)"):
        pipeline.artifact("model")


def test_frame_has_the_rows_of_a_split(examples: Artifact) -> None:
    pd.testing.assert_frame_equal(pipeline.frame("examples", "train")[list(TRAIN)], TRAIN)
    assert list(pipeline.frame(examples, "eval", columns=["distance"])) == ["distance"]
    with pytest.raises(BadInput, match=r"split is None; expected one of \['eval', 'train'\]"):
        pipeline.frame("examples")


def test_overviews_of_rows_and_statistics_agree(examples: Artifact) -> None:
    of_rows = pipeline.overview(TRAIN)._repr_html_()
    assert "3 rows, 3 features" in of_rows and "33.3%" in of_rows and "<svg" in of_rows
    assert "<b>" not in of_rows and "&lt;b&gt;" in of_rows
    statistics = pipeline.step("statistics", kind="statistics", inputs={"examples": "examples"})
    assert statistics.uri.endswith("/explore.statistics/statistics")
    assert pipeline.statistics(statistics, "train").datasets[0].num_examples == 3
    figures = re.compile("distance</td>.*?</tr>")
    (rows,), (read,) = figures.findall(of_rows), figures.findall(pipeline.overview(statistics, "train").html)
    assert rows.partition("<svg")[0] == read.partition("<svg")[0]


def test_dive_embeds_a_sample_with_escaped_values(examples: Artifact) -> None:
    source = html.unescape(pipeline.dive("examples", "train").html)
    held = json.loads(re.findall(r"const \{ columns, rows \} = (.*);\n", source)[0])
    assert held["columns"]["carrier"] == [CRAFTED, None, CRAFTED] and held["rows"] == 3
    assert source.count("</script>") == 1
    many = html.unescape(pipeline.dive(pd.DataFrame({"x": range(5000)})).html)
    assert (
        "of ${rows} rows" in many and len(json.loads(re.findall(r"rows \} = (.*);\n", many)[0])["columns"]["x"]) == 2000
    )


def test_use_outside_a_notebook_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context, "_current", [])
    with pytest.raises(BadInput, match="neither a notebook of NotebookOperator"):
        pipeline.inputs()


def test_non_json_or_oversized_result_is_refused() -> None:
    with pytest.raises(BadInput, match=r"result\['a'\] is a builtins.set"):
        pipeline.result({"a": {1}})
    with pytest.raises(BadInput, match="expected 32000 at most"):
        pipeline.result("x" * 40_000)
