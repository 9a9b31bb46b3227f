"""Writes what outlives runs below a store, beside artifacts and models: state of monitors, schemas, records, studies.

    PYTHONPATH=. .venv-runtime/bin/python tests/ml/portable/write_state.py FILE

``FILE`` gets each address below the store with its text. ``tests/written_before/state.json`` was written by 0.1.0.
"""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from airflow_hops.core.artifacts.artifact import Artifact, Producer
from airflow_hops.core.monitor_reports import note_report
from airflow_hops.core.retraining.conditions import Drift
from airflow_hops.core.retraining.decision import RetrainingDecision, decide
from airflow_hops.core.retraining.decisions import DecisionLog, claim_request, note_request
from airflow_hops.core.retraining.policy import Budget, RetrainingPolicy
from airflow_hops.core.retraining.situation import Situation
from airflow_hops.core.schema.history import freeze_schema
from airflow_hops.core.skew import SkewProperties, SkewReference
from airflow_hops.core.steps.run_record import RunRecord, write_record
from airflow_hops.core.store import ArtifactStore
from airflow_hops.core.store.owners import claim, set_owners
from airflow_hops.core.store.task_state import task_state
from airflow_hops.core.training.record import TrainingRecord, write_training
from airflow_hops.extensions.experiments.core.search import StudyRecord
from airflow_hops.extensions.experiments.core.studies import study_folder
from airflow_hops.extensions.streams.core import ranges
from airflow_hops.extensions.streams.core.source import TopicSource
from airflow_hops.extensions.streams.core.topic_ranges import TopicRanges
from airflow_hops.ml.skew.plan import CapturedWindow, window_of_run

START = datetime(2026, 11, 1, tzinfo=UTC)
MODEL, ASSET, DAG, TASKS = "flights", "retrain flights", "monitoring", ("watch", "group.request")
STUDY, TRAINING, SCHEMA = "of the night", "0" * 32, 'feature { name: "distance" type: FLOAT }\n'
FILES = [f"2026110{day}T000000.000000Z-{day}.parquet" for day in range(1, 4)]
"""Captured files of three days, of which a run has compared two."""
POLICY = RetrainingPolicy(
    when=Drift(consecutive=2), cooldown=timedelta(days=3), budget=Budget(trainings=1, per=timedelta(days=30))
)
WINDOW = ("2026-11-01T00:00:00", "2026-11-02T00:00:00")
TOPIC = TopicSource("kafka://flights")


def producer(task: str, day: int) -> Producer:
    return Producer(DAG, f"scheduled__2026-11-0{day}T00:00:00+00:00", task)


def skew_artifact(store: ArtifactStore, model: str | None, day: int) -> Artifact:
    """Returns a comparison of a day's rows, which have drifted."""
    end = (START + timedelta(days=day)).isoformat()
    origin = SkewReference("file:///store/statistics", "f0", model=model, version=model and 1)
    properties = SkewProperties("drift", drifted=("distance",), reference=origin, window_end=end)
    uri = store.address(producer("skew", day), "skew")
    return Artifact(uri, "skew", f"f{day}", metrics={"rows_current": 500}, properties=properties.to_dict())


def decided(store: ArtifactStore, task: str, model: str | None, day: int) -> RetrainingDecision:
    """Decides about a day's comparison, and records it."""
    log = DecisionLog(store, producer(task, day))
    names = log.names()
    newest = log.newest(names)
    report = skew_artifact(store, model, day)
    decision = decide(POLICY, Situation.of(report, START), newest[0].decision if newest else None)
    log.append(names, decision)
    return decision


def compared_files(store: ArtifactStore, files: list[str], day: int) -> CapturedWindow:
    """Returns the files that a day's run compares."""
    spec = SimpleNamespace(producer=producer("skew", day))
    context: Any = SimpleNamespace(store=store, spec=spec, has_input=lambda name: False)
    return window_of_run(context, MODEL, files)


def write(store: ArtifactStore) -> None:
    """Writes what monitors of two tasks, captured rows, a topic and a table keep on two days."""
    for day in (1, 2):
        note_report(store, MODEL, skew_artifact(store, MODEL, day), [1], f"2026-11-0{1 + day}", producer("skew", day))
        for task, model in zip(TASKS, (MODEL, None), strict=True):
            decision = decided(store, task, model, day)
            if decision.requested:
                note_request(store, ASSET, model, decision.requests[-1], 1)
                claim_request(store, decision.cause, Producer("training", "asset__1", "train"))
    decided(store, "once", MODEL, 1)
    compared_files(store, FILES[:2], 1).commit()
    planned = TopicRanges("flights", "id", WINDOW, {"0": (0, 17)})
    with patch.object(ranges, "plan_ranges", lambda *given: planned):
        ranges.recorded_ranges(store, producer("read", 1), "flights", TOPIC, WINDOW)
    store.create_text(f"{task_state(store, producer('read', 1), 'states')}/flights-0.json", '{"state": "7"}')


def write_records(store: ArtifactStore) -> None:
    """Writes records of a training, a step and a search, owners of a name, and a frozen schema."""
    time = START.isoformat()
    write_training(store, DAG, TrainingRecord(TRAINING, "run", "complete", 1, dag_run_id="r", task_id="train"))
    write_record(store, "a" * 64, RunRecord(DAG, "train", "m:f", {"np": 2}, {}, {}, "0.1.0", "3.11", {}, time), None)
    claim(store, "features", "delays", DAG)
    set_owners(store, "features", "delays", [DAG, "other"], "ann", "one team")
    study = study_folder(store, DAG, "group.search", STUDY)
    study.write(
        StudyRecord(
            STUDY, DAG, "group.search", "r", "complete", "m:f", {}, ["auc"], ["maximize"], "tpe", "", 1, 1, 0, time, "b"
        )
    )
    freeze_schema(
        store, f"{store.uri(DAG)}/_frozen/infer/schema", SCHEMA, producer=producer("infer", 1), note="inferred"
    )


def main(file: Path) -> None:
    with TemporaryDirectory() as folder:
        write(ArtifactStore(folder))
        write_records(ArtifactStore(folder))
        files = sorted(each for each in Path(folder).rglob("*") if each.is_file())
        texts = {
            str(each.relative_to(folder)): each.read_text().replace(Path(folder).as_uri(), "file:///store")
            for each in files
        }
    file.write_text(json.dumps(texts, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
