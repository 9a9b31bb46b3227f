"""The steps of a champion, run again for other windows: a small pipeline of real steps, without Airflow and Spark."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from world import write_artifact

from airflow_hops.core.artifacts.artifact import Artifact, Producer
from airflow_hops.core.errors import BadInput, HopsError
from airflow_hops.core.models.model_record import ModelRecord, ServedVersion, write_record
from airflow_hops.core.monitor_reports import note_report
from airflow_hops.core.steps import run_record as records
from airflow_hops.core.steps.run_record import INGEST_ENTRY, RunRecord, record_key
from airflow_hops.core.store import ArtifactStore
from airflow_hops.core.times import as_utc
from airflow_hops.core.training.options import TrainingOptions
from airflow_hops.extensions.experiments.core.search import SearchOptions, Uniform
from airflow_hops.extensions.experiments.core.search.space import space_to_dict
from airflow_hops.extensions.replay.runner.chain import ChainStep, window_of
from airflow_hops.extensions.replay.runner.pipeline import PipelineReplay
from airflow_hops.runner.runtime import RuntimeHook

pytestmark = pytest.mark.runtime
JANUARY, MARCH, APRIL = "2020-01-01T00:00:00+00:00", "2020-03-01T00:00:00+00:00", "2020-04-01T00:00:00+00:00"

PREPARE = """
def prepare(context, tables):
    import pyarrow.parquet as pq
    from airflow_hops.core.artifacts.artifact import RowCounts
    from airflow_hops.core.artifacts.properties import ExamplesProperties

    assert tables["uri"] == context.input("tables").uri
    rows = pq.read_table(context.local("tables") / "sales").to_pandas()
    rows["at"] = rows["at"].astype("int64") // 10**9 if rows["at"].dtype != "int64" else rows["at"]
    counts = {}
    with context.output() as writer:
        for split, part in (("train", rows[rows.index % 4 > 0]), ("eval", rows[rows.index % 4 == 0])):
            (writer.path / split).mkdir()
            part.to_parquet(writer.path / split / "part-0.parquet", index=False)
            counts[split] = RowCounts(len(part), len(part))
        facts = ExamplesProperties("bought", None, "at", tables["properties"]["window"], tuple(counts), "binary")
        return writer.commit(rows=counts, properties=facts.to_dict())
"""
MODEL = """
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

def train(context):
    rows = context.table("train")
    model = make_pipeline(StandardScaler(), LogisticRegression(C=context.params.get("C", 1.0)))
    model.fit(rows.frame()[["a", "b"]], rows.labels)
    context.report(1, score=model.score(rows.frame()[["a", "b"]], rows.labels))
    return model
"""


class Shop:
    """A pipeline that was run for January and February, whose model serves.

    Its schema is that of an earlier run, and it learns from the good rows of a validation.
    """

    def __init__(self, run_step: Any, launcher: Any, folder: Path) -> None:
        self._run, self._launcher, self.folder = run_step, launcher, folder
        self.store: ArtifactStore = run_step.store
        random, hours = np.random.default_rng(5), 24 * (31 + 29 + 31)
        rows = pd.DataFrame({"at": pd.date_range(JANUARY, periods=hours, freq="h"), "a": random.normal(size=hours)})
        rows["b"] = random.normal(size=hours) + rows.index / hours
        rows["bought"] = (rows["a"] + 0.5 * rows["b"] + random.normal(size=hours) > 0.3).astype("int64")
        (folder / "shop").mkdir()
        rows.to_csv(folder / "sales.csv", index=False)
        (folder / "shop" / "model.py").write_text(MODEL)
        _, earlier = self._data("earlier", "2020-02-01")
        self.schema = self._step("schema", "ml.schema.stage:run", "earlier", statistics=earlier)
        self.examples, self.statistics = self._data("champion", MARCH)
        values = {"examples": self.examples, "statistics": self.statistics, "schema": self.schema}
        anomalies = self._step("anomalies", "ml.validation:run", "champion", {"split_anomalous": True}, **values)
        values["examples"] = Artifact.from_dict(anomalies.properties["examples"])  # the good rows
        options = {"train": "shop.model:train", "strategy": "single", "np": 1}
        self.champion = self._step("model", "ml.training.stage:run", "champion", options, **values)
        self._searched = (TrainingOptions(**options).to_dict(), values)
        self._options = options
        blessing = {"model_name": "shop", "minimum": {"auc": 0.5}}
        inputs = {"model": self.champion, "examples": self.examples}
        self._step("evaluation", "ml.evaluate.stage:run", "champion", blessing, **inputs)
        self.serve(self.champion)

    def _data(self, run_id: str, end: str) -> tuple[Artifact, Artifact]:
        source = {"uri": str(self.folder / "sales.csv"), "time_column": "at"}
        window = {"sources": {"sales": source}, "window_start": "2020-01-01", "window_end": end}
        tables = self._step("snapshot", "ml.ingest:run", run_id, window)
        shipped = {"source": PREPARE, "function": "prepare", "wants_context": True, "args": []}
        shipped["kwargs"] = {"tables": tables.to_dict()}
        examples = self._step("examples", "ml.step.function:run", run_id, shipped, tables=tables)
        return examples, self._step("statistics", "ml.statistics.stage:run", run_id, examples=examples)

    def _step(self, kind: str, entry: str, run_id: str, params: Any = None, **inputs: Artifact) -> Artifact:
        how = {"code_paths": (str(self.folder),), "launcher": self._launcher, "task_id": f"shop-{kind}"}
        made: Artifact = self._run(
            f"airflow_hops.{entry}", params=params, inputs=inputs, kind=kind, run_id=run_id, **how
        )
        return made

    def search(self) -> Artifact:
        """The model of a search over the same data."""
        training, values = self._searched
        space = {"C": Uniform(0.1, 10.0)}
        options = SearchOptions(training, space_to_dict(space), ["score"], ["maximize"], trials=1)
        return self._step(
            "model", "extensions.experiments.ml.search.stage:run", "searched", options.to_dict(), **values
        )

    def retrain(self) -> Artifact:
        """The model of another run over the same data."""
        return self._step("model", "ml.training.stage:run", "retrained", self._options, **self._searched[1])

    def serve(self, model: Artifact) -> None:
        write_record(self.store, "shop", ModelRecord(champion=ServedVersion.of(model, 1, "", 100)))

    def forget(self, artifact: Artifact, entry: str = "") -> Callable[[], None]:
        """Removes the record of the step that made an artifact, or changes its entry; returns what puts it back."""
        manifest = self.store.manifest(artifact.uri)
        key = record_key(manifest.cache_key_parts, manifest.inputs)
        path = Path(f"{self.store.internal('_runs', 'tests', key)}.json".removeprefix("file://"))
        text = path.read_text()
        if entry:
            path.write_text(json.dumps({**json.loads(text), "entry": entry}))
        else:
            path.unlink()
        return lambda: path.write_text(text) and None


@pytest.fixture(scope="module")
def shop(shared_run_step: Any, warm_launcher: Any, tmp_path_factory: pytest.TempPathFactory) -> Shop:
    return Shop(shared_run_step, warm_launcher, tmp_path_factory.mktemp("shop"))


@pytest.fixture
def replay(shop: Shop, warm_launcher: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., PipelineReplay]]:
    extra = {"conn_type": "hops", "extra": {"store": shop.store.root}}
    monkeypatch.setenv("AIRFLOW_CONN_HOPS_DEFAULT", json.dumps(extra))
    monkeypatch.setattr(RuntimeHook, "warm_start", lambda hook: warm_launcher.warm)
    yield lambda model_name="shop", hook=None: PipelineReplay(hook or RuntimeHook(), model_name)
    shop.serve(shop.champion)


def test_a_candidate_of_the_champions_own_window_is_the_champion(shop: Shop, replay: Any) -> None:
    (shop.folder / "shop" / "model.py").write_text("raise ValueError('changed since')\n")
    shutil.rmtree(shop.store.uri("@backtest").removeprefix("file://"), ignore_errors=True)  # of the other tests
    pipeline = replay()
    assert (pipeline.dag_id, pipeline.first_window) == ("tests", (JANUARY, MARCH))
    candidate, was_there = pipeline.train(*pipeline.first_window)
    (shop.folder / "shop" / "model.py").write_text(MODEL)
    assert not was_there
    assert candidate.statistics["fingerprint"] == shop.store.manifest(shop.statistics.uri).fingerprint
    assert candidate.cost["core_s"] > 0.1 and not candidate.cost.get("gpu_s") and candidate.wall_s > 0
    own = shop.store.manifest(candidate.schema["uri"])
    assert own.inputs["statistics"][0].uri == candidate.statistics["uri"]

    retained = {each["uri"] for each in (candidate.model, candidate.statistics, candidate.schema, candidate.examples)}
    folder = candidate.model["uri"].rpartition("/shop-model/")[0]
    assert {uri for uri in shop.store.artifacts(folder) if "/history/" not in uri} == retained
    _, reasons = pipeline.gate(candidate, replace(candidate, model=shop.champion.to_dict()))
    assert "auc +0.0000 (95% interval +0.0000 to +0.0000) against the champion" in "; ".join(reasons)
    assert pipeline.gate(candidate, candidate) == (False, ("the model is the champion already",))


def test_candidate_is_trained_once_on_its_window_only(shop: Shop, replay: Any) -> None:
    first, second = replay(), replay()
    candidate, _ = first.train("2020-02-01", "2020-04-01")
    rows = candidate.examples["rows"]
    assert sum(rows[split]["rows_out"] for split in rows) == 24 * (29 + 31)
    assert candidate.model["properties"]["window"] == [f"2020-02-01{JANUARY[10:]}", APRIL]
    assert second.key == first.key and second.train("2020-02-01", "2020-04-01") == (candidate, True)
    champion, _ = second.train(JANUARY, MARCH)
    blessed, reasons = second.gate(candidate, champion)
    assert not blessed and "against the champion" in "; ".join(reasons)
    assert second.gate(champion, candidate)[1] != reasons
    history = second.history(JANUARY, APRIL)
    assert sum(counts.rows_out for counts in history.rows.values()) == 24 * (31 + 29 + 31)

    shop.serve(shop.retrain())  # by the same code: what was made for the champion before is good
    third = replay()
    assert third.notes == [
        "No evaluation of the champion is recorded: candidates are judged as by the newest one of its DAG."
    ]
    assert third.train("2020-02-01", "2020-04-01") == (candidate, True)
    assert third.history(JANUARY, APRIL) == history and third.gate(candidate, champion)[0] == blessed

    graph = next(Path(candidate.model["uri"].removeprefix("file://")).rglob("*.onnx"))
    graph.write_bytes(b"damaged")
    assert not second.train("2020-02-01", "2020-04-01")[1]
    assert second.train("2020-02-01", "2020-04-01")[1] and graph.read_bytes() != b"damaged"


def test_killed_training_is_resumed(shop: Shop, replay: Any) -> None:
    killed, entries = RuntimeHook(), list[str]()
    run = killed.run

    def killed_before_the_training(spec: Any, **options: Any) -> Any:
        entries.append(spec.entry)
        if len(entries) > 3:
            killed.kill()
        return run(spec, **options)

    killed.run = killed_before_the_training  # type: ignore[method-assign]
    with pytest.raises(HopsError):
        replay(hook=killed).train("2020-01-15", "2020-02-15")
    resumed = RuntimeHook()
    again, run_again = list[str](), resumed.run
    resumed.run = lambda spec, **options: (again.append(spec.entry), run_again(spec, **options))[1]  # type: ignore
    candidate, was_there = replay(hook=resumed).train("2020-01-15", "2020-02-15")
    assert not was_there and not set(entries[:3]) & set(again), (entries, again)
    assert candidate.model["properties"]["window"][0].startswith("2020-01-15")


def test_waiting_back_test_can_be_killed(shop: Shop, replay: Any) -> None:
    waits = replay()
    folder = shop.store.uri("@backtest", waits._run_id(as_utc(JANUARY), as_utc(MARCH)))
    with shop.store.lock(folder), ThreadPoolExecutor() as threads:
        waiting = threads.submit(waits.train, JANUARY, MARCH)
        assert not wait([waiting], 0.7).done
        waits._hook.kill()
        with pytest.raises(HopsError, match="killed while another back-test trained"):
            waiting.result()


def test_champion_of_a_search_repeats_the_search(shop: Shop, replay: Any) -> None:
    shop.serve(shop.search())
    candidate, _ = replay().train(JANUARY, "2020-02-10")
    assert set(candidate.model["properties"]["params"]) == {"C"}
    assert candidate.model["properties"]["window"][1].startswith("2020-02-10")


def test_unrepeatable_steps_are_reported(shop: Shop, replay: Any) -> None:
    with pytest.raises(BadInput, match=r"model 'shoe' has no champion in .*deployed models: .*shop"):
        replay("shoe")
    with pytest.raises(BadInput, match="no rows in the window"):
        replay().train("2021-01-01", "2021-02-01")
    with pytest.raises(BadInput, match="expected an end after the start"):
        replay().train(MARCH, JANUARY)
    for artifact, entry in ((shop.examples, ""), (shop.champion, "airflow_hops.ml.of_an_older_version:run")):
        put_back = shop.forget(artifact, entry)
        with pytest.raises(BadInput, match=r"no record of the step that made it.*run the training DAG once more"):
            replay()
        put_back()
    put_back = shop.forget(shop.schema)
    with pytest.raises(BadInput, match="airflow hops schema reset"):
        replay()
    put_back()
    (shop.folder / "sales.csv").rename(shop.folder / "moved.csv")
    with pytest.raises(BadInput, match=r"sources of model 'shop': .*sales.csv.*no file matches; restore"):
        replay()
    (shop.folder / "moved.csv").rename(shop.folder / "sales.csv")
    imported = write_artifact(shop.store, by=Producer("tests", "imported", "shop-import"))
    start, parts = {"start": (shop.champion,)}, {"input start": "champion"}
    record = RunRecord("tests", "tune", "tune:run", {}, {"start": [shop.champion.to_dict()]}, parts, "", "", {}, "")
    records.write_record(shop.store, record_key(parts, start), record, None)
    tuned = {"by": Producer("tests", "tuned", "shop-model"), "inputs": {"start": shop.champion}}
    shop.serve(write_artifact(shop.store, cache_key_parts=parts, **tuned))
    with pytest.raises(BadInput, match="task 'shop-model' continues from its output in an earlier run"):
        replay()
    shop.serve(imported)
    with pytest.raises(BadInput, match="none of the steps that made it is an ingest with a window_end"):
        replay()


def test_the_newest_monitor_is_found(shop: Shop, replay: Any) -> None:
    assert replay().monitor() == ({}, {})
    monitored: list[tuple[str, dict[str, str], int]] = [("skew", {}, 1), ("performance", {}, 2)]
    for kind, params_of, number in [*monitored, ("performance", {"label": "returned"}, 3)]:
        params = {"model_name": "shop", "min_rows": number, **params_of}
        producer, parts = Producer("monitors", f"run-{number}", kind), {"parameters": str(number)}
        artifact = write_artifact(shop.store, kind, by=producer, cache_key_parts=parts)
        record = RunRecord("monitors", kind, f"airflow_hops.ml.{kind}:run", params, {}, parts, "", "", {}, "")
        records.write_record(shop.store, record_key(parts, {}), replace(record, output_kind=kind), None)
        note_report(shop.store, "shop", artifact, [1], None, producer)
    assert [params_of["min_rows"] for params_of in replay().monitor()] == [1, 2]


def test_fixed_windows_are_refused() -> None:
    def step(name: str, entry: str = "prepare:run", **params: Any) -> ChainStep:
        record = RunRecord("d", name, entry, params, {}, {}, "", "", {}, "")
        return ChainStep(Artifact(name, name, name), record, Producer())

    sales = step("sales", INGEST_ENTRY, window_start=None, window_end="2020-03-01")
    weather = step("weather", INGEST_ENTRY, window_start="2019-12-01", window_end=MARCH)
    tables = {"uri": "u", "kind": "snapshot", "fingerprint": "f", "properties": {"window": [None, MARCH]}}
    assert window_of([sales, step("prepare", kwargs={"tables": tables, "since": "2020-02-01"})]) == (None, MARCH)
    with pytest.raises(BadInput, match=r"different windows \(sales the beginning to 2020-03.*weather 2019-12-01"):
        window_of([sales, weather])
    with pytest.raises(BadInput, match=r"'prepare' has '2020-03-01' as kwargs/as_of/0"):
        window_of([sales, step("prepare", kwargs={"as_of": ["2020-03-01"]})])
