"""Cards of a model's versions: from the store alone, in Markdown."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt
from world import write_artifact

from airflow_hops.core.artifacts.artifact import Artifact, Producer, RowCounts
from airflow_hops.core.artifacts.properties import DeploymentProperties, ModelProperties
from airflow_hops.core.evaluation import EvaluationReport, Figures, ModelReference
from airflow_hops.core.models.model_record import ModelRecord, ServedVersion, read_record, write_record
from airflow_hops.core.rollout.counts import Counts
from airflow_hops.core.rollout.decision import CanaryFinding as RolloutFinding
from airflow_hops.core.rollout.decision import RolloutDecision
from airflow_hops.core.steps.run_record import RunRecord, record_key
from airflow_hops.core.steps.run_record import write_record as write_run_record
from airflow_hops.core.store import ArtifactStore
from airflow_hops.extensions.governance.core.cards.markdown import paragraphs, table
from airflow_hops.extensions.governance.core.cards.model_card import model_card
from airflow_hops.extensions.governance.core.cards.model_sources import VersionSources

HOSTILE = "<img src=x onerror=alert(1)> | [click](http://evil.example) ![](x) www.evil.example a@b.example `x|http://y`"
PARTS = {"code": "1"}
NOW = datetime(2013, 6, 1, tzinfo=UTC)


class Life:
    """A store in which version 1 of the model ``m`` served, and version 2 was rolled out."""

    def __init__(self, store: Any) -> None:
        self.store = store
        statistics = self.make("training", "statistics", {"train/statistics.json": json.dumps(_statistics())})
        properties = ModelProperties(
            features=(HOSTILE, "temp"),
            label="late",
            window=("2013-01-01T00:00:00Z", "2013-04-01T00:00:00Z"),
            statistics=statistics.uri,
            statistics_fingerprint=statistics.fingerprint,
            problem="binary",
        ).to_dict()
        rows = {"train": RowCounts(100, 90, {"no label": 10})}
        model = self.make(
            "training", "model", {"training.json": "{}"}, properties=properties, rows=rows, cache_key_parts=PARTS
        )
        report = EvaluationReport(
            blessed=True,
            reasons=("auc 0.71 is at least 0.6",),
            candidate=ModelReference(model.uri, model.fingerprint),
            rule={"metric": "auc"},
            splits={"eval": Figures(50, {"auc": 0.71, "auc_low": 0.7, "auc_high": 0.72})},
        )
        evaluation = self.make("training", "evaluation", {"evaluation.json": json.dumps(report.to_dict())})
        deployed = DeploymentProperties("m", 2, "canary", 1, {"1": 80, "2": 20}).to_dict()
        inputs = {"model": model, "evaluation": evaluation}
        self.make("training", "deployment", {"deployment.json": "{}"}, properties=deployed, inputs=inputs)
        write_run_record(store, record_key(PARTS, {}), _run_record(), None)
        by = {"dag_id": "training", "run_id": "run", "task_id": "deployment"}
        served = ServedVersion.of(model, 2, "/models/m/2", 100)
        judged = RolloutDecision("promoted", ("errors: no more",), percent=50, canary=Counts(147), stable=Counts(583))
        record = ModelRecord(champion=replace(served, version=1))
        record = record.after("deployed", 1, "the first model", traffic={1: 100}, by={**by, "task_id": "first"})
        record = record.after("canary", 2, "20%", traffic={1: 80, 2: 20}, by=by)
        record = replace(record, champion=served).after("promoted", 2, "good", traffic={2: 100}, by=by, decision=judged)
        write_record(store, "m", record)
        self.model, self.statistics = model, statistics

    def make(self, dag_id: str, kind: str, files: dict[str, str], **facts: Any) -> Artifact:
        return write_artifact(self.store, kind, files, Producer(dag_id, "run", kind), **facts)

    def serve(self, cost: dict[str, float] | None = None, inputs: Any = None, **changes: Any) -> Artifact:
        """Another artifact serves as version 2, whose properties are changed."""
        properties = ModelProperties(label="y", problem="binary", **changes).to_dict()
        dag_id = "secret_train" if not changes else "training"
        more = {"cost": cost or {}, "inputs": inputs or {}}
        model = self.make(dag_id, "model", {"training.json": "{ }"}, properties=properties, **more)
        record = read_record(self.store, "m")
        assert record.champion is not None
        write_record(self.store, "m", replace(record, champion=replace(record.champion, model=model)))
        return model

    def card(self, version: int = 2) -> str:
        return model_card(VersionSources(self.store, "m", version), {"training": HOSTILE}.get, NOW)


def _statistics() -> dict[str, Any]:
    origin = {"type": "STRING", "count": 100, "missing": 0, "top_values": [["JFK", 60], [HOSTILE, 40]]}
    temp = {"type": "FLOAT", "count": 75, "missing": 25, "mean": 12.5, "std": 2.0, "min": -1.0, "max": 30.0}
    return {"split": "train", "rows": 100, "features": {"origin": origin, "temp": temp}}


def _run_record() -> RunRecord:
    return RunRecord(
        "training", "train", "m:run", {}, {}, PARTS, "0.1.0", "3.11.9", {"tensorflow": "2.16"}, "2026", code="ab" * 32
    )


@pytest.fixture
def life(store: Any) -> Life:
    return Life(store)


def test_card_tells_what_the_training_cost(life: Life) -> None:
    life.serve(cost={"core_s": 7200.0, "gpu_s": 1800.0}, train="m:other")
    card = life.card()
    assert "| CPU seconds | 7200 |" in card and "| Seconds times GPUs | 1800 |" in card


def test_card_reports_facts_and_unknowns(life: Life) -> None:
    card = life.card()
    for unknown in (
        "| CPU seconds | not known |",
        "| On a model server | not checked, or not known |",
    ):
        assert unknown in card
    for report in (
        "| Window | 2013-01-01T00:00:00Z to 2013-04-01T00:00:00Z |",
        "| train | 100 | 90 |",
        "| temp | FLOAT | 25.0% | 12.5 | 2 | -1 | 30 |",
        "| origin | STRING | 0.0% | JFK 60%",
        "| Python | 3.11.9 |",
        f"| User code | SHA-256 {'ab' * 32} |",
        "| Why | auc 0.71 is at least 0.6 |",
        "| auc | 0.71 (0.7 to 0.72) | – |",
        "| promoted v2 | DAG training | v2: 100% | good; errors: no more |",
    ):
        assert report in card, report


def test_nothing_in_a_card_becomes_markup_or_a_link(life: Life) -> None:
    prose = f"{HOSTILE}\n# title\n- item\n1. one\n---\n    code\n```\n{HOSTILE}\nx\n:-:\n\n| a |\n| --- |\n> quote\n=="
    rows = [(HOSTILE, f"x\\|{HOSTILE}", "x\\|http://evil.example|`a", "*b*\\")]
    card = life.card()
    tables = [table(rows, ["_c_", HOSTILE, "", ""], caption) for caption in (HOSTILE, "  ")]
    text = "\n\n".join([card, *tables, paragraphs(prose)])
    tokens = MarkdownIt("gfm-like", {"html": True, "linkify": True}).parse(text)
    results = {child.type for token in tokens for child in (token, *(token.children or ()))}
    assert not results & {"html_inline", "html_block", "link_open", "image", "em_open", "fence", "code_block", "hr"}
    assert not results & {"bullet_list_open", "ordered_list_open", "blockquote_open"}
    heads = [token.tag for token in tokens if token.type == "heading_open"]
    assert heads == ["h1", *["h2"] * card.count("\n## ")]
    assert sum(token.type == "table_open" for token in tokens) == card.count("| --- |\n") + len(tables)
    shown = "".join(child.content for token in tokens for child in token.children or ())
    for word in HOSTILE.split():
        assert word.replace("|", "") in shown.replace("|", ""), "nothing is lost"


def test_card_shows_what_is_left(life: Life) -> None:
    shutil.rmtree(Path(life.store.uri("training").removeprefix("file://")))
    text = model_card(VersionSources(life.store, "m", 2), {}.get, NOW)
    assert "0.71" not in text and "The model's artifact cannot be read" in text
    assert "Not known: DAG training, whose doc_md tells it, is gone." in text


def test_card_lists_all_dags_that_it_tells_of(life: Life) -> None:
    def listed() -> set[str]:
        sources = VersionSources(life.store, "m", 2)
        text = model_card(sources, {}.get, NOW)
        assert set(re.findall(r"secret_[a-z]+", text)) <= set(sources.dags)
        return set(sources.dags)

    evaluation = life.make("secret_evaluation", "evaluation", {"evaluation.json": "{}"})
    deployed = DeploymentProperties("m", 2, "canary", 1, {}).to_dict()
    inputs = {"model": life.model, "evaluation": evaluation}
    life.make("training", "deployment", {"deployment.json": "{}"}, properties=deployed, inputs=inputs)
    shutil.rmtree(Path(life.store.uri("secret_evaluation").removeprefix("file://")))
    by = {"dag_id": "secret_promotion", "run_id": "r", "task_id": "promote"}
    result = RolloutDecision("step", ("it grew",), findings=(RolloutFinding("errors", "bad", "found"),))
    record = read_record(life.store, "m")
    write_record(life.store, "m", record.after("step", 2, "asked", traffic={2: 100}, by=by, decision=result))
    assert listed() == {"training", "secret_evaluation", "secret_promotion"}
    data = life.make("secret_data", "examples", {"a.txt": "a"})
    life.serve(statistics=f"{data.uri}/statistics", schema=f"{data.uri}/schema")
    assert "secret_data" in listed()
    life.serve(inputs={"examples": data})
    assert {"secret_train", "secret_data"} <= listed()


def test_artifact_outside_of_the_store_is_not_read(life: Life, tmp_path: Path) -> None:
    foreign = ArtifactStore(str(tmp_path / "foreign"))
    model = write_artifact(foreign, properties=ModelProperties(label="elsewhere").to_dict())
    record = read_record(life.store, "m")
    assert record.champion is not None
    write_record(life.store, "m", replace(record, champion=replace(record.champion, model=model)))
    assert "is not an artifact of a DAG in this store" in life.card() and "elsewhere" not in life.card()


def test_damaged_statistics_do_not_prevent_a_card(life: Life) -> None:
    statistics = life.make("training", "statistics", {"train/statistics.json": '{"features": {}}'})
    life.serve(statistics=statistics.uri, statistics_fingerprint=statistics.fingerprint)
    text = life.card()
    assert "Training data cannot be shown (KeyError" in text
    assert "It cannot be shown; Caveats say why." in text and "auc 0.71 is at least 0.6" in text


def test_a_version_that_was_only_promoted_has_the_facts_of_its_model(life: Life) -> None:
    record = read_record(life.store, "m")
    assert record.champion is not None
    record = replace(record, champion=replace(record.champion, version=7))
    by = {"dag_id": "training", "run_id": "r", "task_id": "promote"}
    write_record(life.store, "m", record.after("promoted", 7, "asked", traffic={7: 100}, by=by))
    assert "JFK" in life.card(7)


def test_foreign_report_is_named_and_does_not_prevent_a_card(life: Life) -> None:
    life.store.write_text(f"{life.store.uri('training', 'run', 'evaluation', 'evaluation')}/evaluation.json", "{}")
    text = life.card()
    assert (
        "Its evaluation cannot be read: TypeError: splits is missing" in text
        and "| Evaluation | none that is known |" in text
    )
    assert "| train | 100 | 90 |" in text
