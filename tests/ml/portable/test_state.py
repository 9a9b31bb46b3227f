"""State that an earlier version wrote goes on: nothing is compared, requested or planned twice after an upgrade."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from write_state import (
    ASSET,
    DAG,
    FILES,
    MODEL,
    SCHEMA,
    STUDY,
    TOPIC,
    TRAINING,
    WINDOW,
    compared_files,
    decided,
    producer,
    write,
    write_records,
)

from airflow_hops.core.monitor_reports import listed_reports, monitoring_reports
from airflow_hops.core.retraining.decision import RetrainingDecision
from airflow_hops.core.retraining.decisions import claimants, newest_request
from airflow_hops.core.schema.history import schema_history, schema_text
from airflow_hops.core.steps.run_record import read_record
from airflow_hops.core.store import ArtifactStore
from airflow_hops.core.store.owners import owned_names, owners_of
from airflow_hops.core.store.task_state import task_state
from airflow_hops.core.training.record import read_training
from airflow_hops.extensions.experiments.core.studies import recorded_studies, study_folder
from airflow_hops.extensions.governance.core import monitors
from airflow_hops.extensions.governance.core.rule import StoreListing
from airflow_hops.extensions.streams.core import ranges

BEFORE = Path(__file__).parents[2] / "written_before" / "state.json"
LAST = Path(os.environ.get("HOPS_TEST_STATE", BEFORE))
"""State that the upgrade test has another version write."""


@pytest.fixture(params=["0.1.0", "this", *(["last"] if LAST != BEFORE else [])])
def state(request: pytest.FixtureRequest, tmp_path: Path) -> ArtifactStore:
    """A store with the state that a version wrote."""
    store = ArtifactStore(str(tmp_path / "store"))
    if request.param == "this":
        write(store)
        write_records(store)
        return store
    texts = json.loads((LAST if request.param == "last" else BEFORE).read_text())
    for path, text in texts.items():
        store.write_text(f"{store.root}/{path}", text.replace("file:///store", store.root))
    return store


def outcome(decision: RetrainingDecision) -> tuple[str, str]:
    return decision.outcome, decision.why


def needs(store: ArtifactStore) -> tuple[list[str], list[str]]:
    """Returns what a garbage collection retains: by reasons of decisions, and names of captured files."""
    root = Path(store.root.removeprefix("file://"))
    paths = {str(each.relative_to(root)): 1 for each in root.rglob("*.json")}
    time = datetime(2026, 11, 4, tzinfo=UTC)
    listing = StoreListing(store, paths, time, time, lambda dag, run: False, {})
    reasons = sorted(reason for _, reason in monitors.needed(listing))
    return reasons, [need.first for model, need in monitors.captured(listing, {}) if model == MODEL]


def planned(store: ArtifactStore) -> Any:
    with patch.object(ranges, "plan_ranges", lambda *given: pytest.fail("the window is planned again")):
        return ranges.recorded_ranges(store, producer("read", 1), "flights", TOPIC, WINDOW).offsets["0"]


def claims(store: ArtifactStore) -> list[str]:
    request = newest_request(store, ASSET, MODEL)[1]
    return [by["run_id"] for by in claimants(store, request.cause)] if request else []


KINDS: dict[str, tuple[Callable[[ArtifactStore], Any], Any]] = {
    "captured rows": (lambda s: compared_files(s, FILES, 3).names, FILES[2:]),
    "cooldown": (lambda s: outcome(decided(s, "watch", MODEL, 3)), ("refused", "cooldown")),
    "cooldown of spans": (lambda s: outcome(decided(s, "group.request", None, 3)), ("refused", "cooldown")),
    "budget": (lambda s: outcome(decided(s, "watch", MODEL, 9)), ("refused", "budget")),
    "consecutive": (lambda s: outcome(decided(s, "once", MODEL, 2)), ("requested", "")),
    "requests": (lambda s: [newest_request(s, ASSET, model)[0] for model in (MODEL, None)], [1, 1]),
    "claims": (claims, ["asset__1"]),
    "reports": (lambda s: [each.fingerprint for each in monitoring_reports(s, MODEL, "skew")], ["f2", "f1"]),
    "reports by DAG": (lambda s: {dag for dag, _ in listed_reports(s, MODEL, 1, "skew")}, {DAG}),
    "ranges of a topic": (planned, (0, 17)),
    "state of a table": (
        lambda s: s.read_json(f"{task_state(s, producer('read', 2), 'states')}/flights-0.json"), {"state": "7"}
    ),
    "training": (lambda s: getattr(read_training(s, DAG, TRAINING), "task_id", None), "train"),
    "step": (lambda s: getattr(read_record(s, DAG, "a" * 64), "params", None), {"np": 2}),
    "owners": (lambda s: list(owners_of(s, "features", "delays")), [DAG, "other"]),
    "owned": (lambda s: owned_names(s, "features"), ["delays"]),
    "study": (lambda s: getattr(study_folder(s, DAG, "group.search", STUDY).read(), "name", None), STUDY),
    "studies": (lambda s: [each.name for _, each in recorded_studies(s, DAG)[0]], [STUDY]),
    "schema": (lambda s: schema_text(s, s.frozen_schema(DAG, "infer")), SCHEMA),
    "history of a schema": (lambda s: [v.note for v in schema_history(s, s.frozen_schema(DAG, "infer"))], ["inferred"]),
    "needs of decisions": (
        lambda s: needs(s)[0], [f"newest decision of {DAG}, task {task}" for task in ("group.request", "once", "watch")]
    ),
    "needs of positions": (lambda s: min(needs(s)[1]), f"{FILES[1]}\0"),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_state_of_each_version_goes_on(state: ArtifactStore, kind: str) -> None:
    read, expected = KINDS[kind]
    assert read(state) == expected
