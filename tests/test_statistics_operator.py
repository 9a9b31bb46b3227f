"""``StatisticsOperator`` and ``@task.hops_statistics``, in DAGs that run."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import flights_examples
import pytest
from airflow.sdk import DAG, task
from world import World, results, states

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.sources.sources import Source
from airflow_hops.core.store import ArtifactStore
from airflow_hops.operators.statistics import StatisticsOperator

pytestmark = pytest.mark.runtime


@pytest.fixture(scope="module")
def connected(tmp_path_factory: pytest.TempPathFactory, runtime: Path) -> Iterator[ArtifactStore]:
    """A store of this module's own, behind the default connection."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIRFLOW__HOPS__WARM_START", "True")
        store = ArtifactStore(str(tmp_path_factory.mktemp("statistics") / "store"))
        yield World(store, patch).connect(runtime=str(runtime)).store


@pytest.fixture(scope="module")
def conf(connected: ArtifactStore, flights_raw: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Flights of a month as examples, and the same as files: CSV, some of it compressed; and a damaged file."""
    month = flights_examples.months(flights_raw, 1, 1).iloc[::5].reset_index(drop=True)
    splits = {"train": month[month.index % 3 > 0], "eval": month[month.index % 3 == 0]}
    examples = flights_examples.write_examples(connected, splits)
    folder = tmp_path_factory.mktemp("files")
    columns = month[["origin", "distance", "temp", "late"]].assign(id=month.index)
    columns[:1000].to_csv(folder / "a.csv", index=False)
    with gzip.open(folder / "b.csv.gz", "wt") as file:
        columns[1000:2000].to_csv(file, index=False)
    columns[2000:].to_csv(folder / "c.csv", index=False)
    whole = (folder / "b.csv.gz").read_bytes()
    damaged = tmp_path_factory.mktemp("damaged") / "d.csv.gz"
    damaged.write_bytes(whole[: len(whole) // 2])
    places = {"source": str(folder), "damaged": str(damaged)}
    return {"examples": examples.to_dict(), **places, "rows": len(month)}


@pytest.fixture(scope="module")
def run(run_dag: Callable[..., Any], conf: dict[str, Any]) -> Callable[[str], Any]:
    return lambda dag_id: run_dag(dag_id, conf)


@pytest.fixture(scope="module")
def local(run: Callable[[str], Any]) -> dict[str, Any]:
    return results(run("statistics"))


def twin(store: ArtifactStore, value: Any, split: str) -> Any:
    """The JSON twin of a split."""
    folder = store.local(Artifact.from_dict(value))
    return json.loads((folder / split / "statistics.json").read_text())


def test_options_as_json_give_slices(local: Any, connected: ArtifactStore) -> None:
    sliced = local["sliced"]
    assert sliced["properties"]["splits"] == ["train"]
    result = twin(connected, sliced, "train")
    assert set(result["slices"]) == {"origin_EWR", "origin_JFK", "origin_LGA"}
    assert sum(part["rows"] for part in result["slices"].values()) == result["rows"]
    assert sliced["rows"]["train"]["rows_out"] == result["rows"] == sliced["metrics"]["train_rows"]
    assert len(result["features"]["carrier"]["top_values"]) == 5


def test_later_stages_use_all_rows_of_sliced_statistics(local: Any) -> None:
    assert {"carrier", "distance", "late"} <= set(local["schema"]["properties"]["features"])


def test_files_are_a_source_without_examples(local: Any, connected: ArtifactStore, conf: dict[str, Any]) -> None:
    files = local["files"]
    properties = files["properties"]
    assert {name: properties[name] for name in ("splits", "label", "key", "time", "window")} == {
        "splits": ["data"], "label": "late", "key": "id", "time": None, "window": None,
    }  # fmt: skip
    assert set(twin(connected, files, "data")["features"]) == {"origin", "distance", "temp", "late"}
    assert files["rows"]["data"]["rows_in"] == conf["rows"]


def test_a_function_of_the_dag_file_makes_the_options(local: Any, connected: ArtifactStore) -> None:
    result = twin(connected, local["by_function"], "eval")
    assert set(result["slices"]) == {"near", "far"}
    assert result["slices"]["near"]["features"]["distance"]["max"] < 1000
    assert result["slices"]["far"]["features"]["distance"]["min"] >= 1000


def test_statistics_are_cached_until_a_file_changes(
    run: Any, local: Any, conf: dict[str, Any], connected: ArtifactStore
) -> None:
    again = results(run("statistics"))
    assert {name: value["cached"] for name, value in again.items()} == dict.fromkeys(local, True)
    with (Path(conf["source"]) / "a.csv").open("a") as file:
        file.write("NA,99,,1,-1\n")
    changed = results(run("statistics"))
    assert {name: value["cached"] for name, value in changed.items()} == {
        "sliced": True, "schema": True, "by_function": True, "files": False,
    }  # fmt: skip
    assert changed["files"]["rows"]["data"]["rows_in"] == conf["rows"] + 1
    origin = twin(connected, changed["files"], "data")["features"]["origin"]
    assert origin["missing"] == 1 and "NA" not in dict(origin["top_values"]), "missing, as in ingest"


def test_bad_input_fails_the_task_without_a_retry_and_says_what_is_wrong(
    run: Any, local: Any, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    assert states(run("statistics_bad")) == dict.fromkeys(
        ("unknown_option", "no_file", "corrupt", "no_options"), "failed"
    )
    output = "".join(capfd.readouterr()) + caplog.text
    for words in (
        "options has 'slice', expected some of features",
        "nowhere/*.csv': no file matches",
        "d.csv.gz: cannot be read",
        "no_options() returned a dict, expected tfdv.StatsOptions",
    ):
        assert words in output


def test_function_and_options_exclude_each_other() -> None:
    def made() -> None: ...

    with DAG("d", schedule=None):
        decorated = task.hops_statistics(source="/x", options={"num_top_values": 5})(made)
        with pytest.raises(ValueError, match=r"options is .*; expected none, as made\(\) replaces it"):
            decorated()


def test_source_may_have_options() -> None:
    source = Source("/x/*.csv", delimiter=";", columns=("a", "b"))
    operator = StatisticsOperator(task_id="statistics", source=source, split="april", time="t")
    values = operator.step_params({})["source"]
    assert values["split"] == "april"
    assert Source.from_value("source", values["source"]) == source
    assert (values["label"], values["key"], values["time"]) == (None, None, "t")
