"""Garbage collection of a store: what is needed stays, the rest goes, also after kills and beside running tasks."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import signal
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ask_mlflow
import pytest
from airflow.models.dagrun import DagRun
from airflow.utils.session import create_session
from airflow.utils.state import DagRunState
from airflow.utils.types import DagRunType
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import update
from test_continue import make as make_continued
from test_continue import promote
from test_store import any_store, s3_store  # noqa: F401

from airflow_hops.core.artifacts.artifact import MANIFEST_NAME, Artifact, Producer
from airflow_hops.core.capture_layout import name_time
from airflow_hops.core.errors import BadInput, HopsError
from airflow_hops.core.models.continued_models import champion_of_run
from airflow_hops.core.models.logged_windows import LoggedWindow, note_window
from airflow_hops.core.models.model_record import ModelRecord, ServedVersion, write_record
from airflow_hops.core.processes.files import LockHeld
from airflow_hops.core.schema.history import freeze_schema
from airflow_hops.core.steps.protocol import StepSpec
from airflow_hops.core.steps.step_cache import find_cached, record_cached
from airflow_hops.core.store import ArtifactStore
from airflow_hops.core.store.leases import exclusive
from airflow_hops.core.store.uses import record_uses
from airflow_hops.core.training.record import TrainingCurves, TrainingRecord, training_uri, write_training
from airflow_hops.extensions.governance import CollectGarbageOperator
from airflow_hops.extensions.governance.core.collection import GarbageCollection
from airflow_hops.extensions.governance.core.marking import HIDDEN_NAME
from airflow_hops.extensions.governance.core.rule import RetentionPlan, RetentionRule
from airflow_hops.runner.runtime import RuntimeHook

NOW = datetime.now(UTC)
RULE = RetentionRule(keep_days=30, keep_runs=0, keep_versions=1)


def make(
    store: ArtifactStore,
    run: str,
    kind: str,
    *inputs: Artifact,
    days: float = 100,
    dag: str = "flights",
    **properties: Any,
) -> Artifact:
    """Publishes an artifact that is so many days old."""
    producer, parts = Producer(dag, run, kind), {"run": run}
    uri = store.address(producer, kind)
    with store.create(uri, kind, producer, inputs={"input": inputs}, cache_key_parts=parts) as writer:
        (writer.path / "data").write_text(f"{run} {kind}")
        artifact = writer.commit(properties=properties)
    manifest = store.read_json(f"{uri}/{MANIFEST_NAME}")
    manifest["created_at"] = (NOW - timedelta(days=days)).isoformat()
    store.write_text(f"{uri}/{MANIFEST_NAME}", json.dumps(manifest))
    record_cached(store, producer, parts, artifact)
    return artifact


def make_run(store: ArtifactStore, run: str, days: float = 100) -> list[Artifact]:
    """Publishes a snapshot, the examples made from it, and the model trained on them."""
    snapshot = make(store, run, "snapshot", days=days)
    examples = make(store, run, "examples", snapshot, days=days)
    return [snapshot, examples, make(store, run, "model", examples, days=days)]


def served(model: Artifact, version: int) -> ServedVersion:
    return ServedVersion.of(model, version, f"/models/{version}", 100)


def never(dag_id: str, run_id: str) -> bool:
    return False


def uris(*artifacts: Artifact) -> set[str]:
    return {artifact.uri for artifact in artifacts}


@pytest.mark.slow
def test_lineage_of_served_models_is_retained(any_store: ArtifactStore) -> None:  # noqa: F811
    store = any_store
    first, second, third, rejected = (make_run(store, f"run-{number}") for number in range(4))
    frozen = freeze_schema(
        store, store.frozen_schema("flights", "schema"), "", producer=Producer(), note="", features=[]
    )
    deployments = [
        make(store, f"run-{number}", "deployment", run[-1], model_name="flights", version=number + 1, mode="champion")
        for number, run in enumerate((first, second, third))
    ]
    record = ModelRecord(champion=served(third[-1], 3))
    for version in (1, 2, 3):
        record = record.after("deployed", version, "test")
    write_record(store, "flights", record)
    plan = GarbageCollection(store, RULE, never).plan()
    assert plan.kept.keys() == uris(*third, deployments[1], *second, frozen) | {
        uri for uri in store.artifacts(store.root) if "/history/" in uri
    }
    assert plan.kept[third[-1].uri] == "champion of model flights"
    assert plan.kept[second[0].uri] == f"input of {second[1].uri}"
    assert plan.removals.keys() == uris(*first, *rejected, deployments[0], deployments[2])
    assert plan.removals[first[0].uri].size_bytes == len("run-0 snapshot")
    assert store.exists(first[0].uri), "a plan removes nothing"

    assert GarbageCollection(store, RULE, never).remove().removals.keys() == plan.removals.keys()
    assert set(store.artifacts(store.root)) == plan.kept.keys()
    assert store.names(first[0].uri) == []
    for artifact in (*second, *third):
        store.verify(artifact)
    cache_hit, why = find_cached(store, Producer("flights", "new", "model"), {"run": "run-0"})
    assert (cache_hit, why) == (None, "the task has not run before") or cache_hit is None


def test_former_champion_without_a_deployment_is_retained(store: ArtifactStore) -> None:
    record, runs = ModelRecord(), list[list[Artifact]]()
    for version in (1, 2, 3):
        runs.append(make_run(store, f"run-{version}"))
        model = runs[-1][-1]
        make(store, f"run-{version}", "deployment", model, model_name="flights", version=version, mode="champion")
        facts = {"model": model.uri, "fingerprint": model.fingerprint}
        record = replace(record, champion=served(model, version)).after("deployed", version, "test", **facts)
        write_record(store, "flights", record)
        GarbageCollection(store, RULE, never).remove()  # also the deployment, since the version serves
    assert set(store.artifacts(store.root)) == uris(*runs[1], *runs[2])


def test_rule_retains_runs(store: ArtifactStore) -> None:
    runs = {days: make_run(store, f"run-{days}", days) for days in (10, 40, 50, 60, 70)}
    other = make(store, "other-run", "snapshot", days=90, dag="trips")
    make(store, "younger", "model", runs[70][1], days=1, dag="reader")

    def is_active(dag_id: str, run_id: str) -> bool:
        return (dag_id, run_id) == ("flights", "run-60")

    plan = GarbageCollection(store, RetentionRule(keep_days=30, keep_runs=2), is_active).plan()
    assert plan.removals.keys() == uris(*runs[50], runs[70][-1])
    assert "younger than 30 days" in plan.kept[runs[10][0].uri]
    assert "newest 2 of flights" in plan.kept[runs[40][0].uri]
    assert "queued or running" in plan.kept[runs[60][0].uri]
    assert other.uri in plan.kept


def test_artifacts_in_use_are_retained(store: ArtifactStore) -> None:
    """A cached result and an input of another DAG count before the run's own manifests name them."""
    cached, foreign = make_run(store, "old"), make(store, "old", "snapshot", dag="trips")
    hit, _ = find_cached(store, Producer("flights", "now", "examples"), {"run": "old"})
    assert hit is not None
    record_uses(store, Producer("flights", "now", "train"), [foreign, hit])
    assert GarbageCollection(store, RULE, never).remove().removals.keys() == uris(cached[-1])
    assert GarbageCollection(store, RULE, never, NOW + timedelta(days=31)).plan().kept == {}


@pytest.mark.slow
def test_use_during_a_collection_restores_the_artifact(any_store: ArtifactStore) -> None:  # noqa: F811
    store = any_store
    used, unused = make_run(store, "used"), make_run(store, "unused")

    def is_active(dag_id: str, run_id: str) -> bool:
        # The first pass has read the uses by now; the second one sees this.
        record_uses(store, Producer("flights", "now", "train"), [used[-1]])
        return False

    assert GarbageCollection(store, RULE, is_active).remove().removals.keys() == uris(*unused)
    for artifact in used:
        store.verify(artifact)
    assert store.files.folders_with(store.root, HIDDEN_NAME) == []


@pytest.mark.parametrize("root", ["{}/stor\u00e9", "file://{}/a%20b", "file:///{}/x", "file://{}/./x/"])
def test_champion_inputs_are_retained_for_any_store_spelling(root: str, tmp_path: Path) -> None:
    store = ArtifactStore(root.format(tmp_path))
    dag = "fl\u00fcge \u200b\U0001f6eb"
    snapshot, statistics = (make(store, "r\u00fcn", kind, dag=dag) for kind in ("snapshot", "statistics"))
    examples = make(store, "r\u00fcn", "examples", snapshot, dag=dag)
    model = make(store, "r\u00fcn", "model", examples, dag=dag, statistics=statistics.uri)
    write_record(store, "flights", ModelRecord(champion=served(model, 1)))
    (tmp_path / "link").symlink_to(store.files.path(store.root))
    for same in (store, ArtifactStore(f"file://{tmp_path}/link")):
        assert GarbageCollection(same, RULE, never).plan().removals == {}


def test_artifacts_behind_a_dag_link_are_retained(tmp_path: Path) -> None:
    store, other = ArtifactStore(str(tmp_path / "store")), tmp_path / "other disk"
    run = make_run(store, "run")
    write_record(store, "flights", ModelRecord(champion=served(run[-1], 1)))
    (tmp_path / "store" / "flights").rename(other)
    (tmp_path / "store" / "flights").symlink_to(other)
    old = make_run(store, "old")
    assert set(store.artifacts(store.root)) == uris(*run, *old)
    assert GarbageCollection(store, RULE, never).remove().removals.keys() == uris(*old)
    assert set(store.artifacts(store.root)) == uris(*run)


def test_artifact_of_a_cleared_run_is_retained(store: ArtifactStore) -> None:
    cleared, republished = make_run(store, "cleared"), make_run(store, "republished")
    gone, active = make_run(store, "gone"), set[str]()

    def track(items: Iterable[Any], description: str, total: int) -> Iterable[Any]:
        if description == "Removing":
            active.add("cleared")
            make(store, "republished", "snapshot", days=0)
        return items

    collection = GarbageCollection(store, RULE, lambda dag, run: run in active, track=track)
    assert collection.remove().removals.keys() == uris(*gone, *republished[1:])
    for artifact in (*cleared, republished[0]):
        store.verify(artifact)


def test_runs_of_another_airflow_are_retained(store: ArtifactStore) -> None:
    ours, theirs = make_run(store, "ours"), make_run(store, "theirs")
    made_again = make(store, "candidate", "examples", dag="@backtest")  # as 0.1.0 did, with its reports
    store.write_text(report := store.internal("_backtests", "flights", "1", "backtest.json"), "{}")

    def is_active(dag_id: str, run_id: str) -> bool | None:
        return False if run_id == "ours" else None

    plan = GarbageCollection(store, RULE, is_active).plan()
    assert plan.removals.keys() == uris(*ours, made_again)
    plan = GarbageCollection(store, replace(RULE, unknown_runs=True), is_active).plan()
    assert plan.removals.keys() == uris(*ours, *theirs, made_again)
    GarbageCollection(store, RULE, is_active).remove()
    assert not store.exists(made_again.uri) and store.read_json(report) == {}


@pytest.mark.slow
def test_training_records_follow_their_run_and_model(any_store: ArtifactStore) -> None:  # noqa: F811
    store, active = any_store, set[str]()

    def train(run: str, number: int, *, days: float = 100, model: Artifact | None = None, parent: int = 0) -> str:
        at_ms = int((NOW - timedelta(days=days)).timestamp() * 1000)
        tags = {"hops.model": model.uri, "hops.fingerprint": model.fingerprint} if model else {}
        owner = f"{parent:032x}" if parent else None
        record = TrainingRecord(
            f"{number:032x}", run, "FINISHED", at_ms - 1000, at_ms, run, "train", tags=tags, parent=owner
        )
        write_training(store, "flights", record, TrainingCurves())
        return training_uri(store, "flights", record.run_id)

    used, old = make_run(store, "used"), make_run(store, "old")
    write_record(store, "flights", ModelRecord(champion=served(used[-1], 1)))
    retained = {
        train("used", 1, model=used[-1]),
        train("failed-lately", 2, days=3),
        train("search-lately", 3),
        train("search-lately", 4, days=3, parent=3),
        train("cleared", 5),
    }
    unneeded = {train("old", 6, model=old[-1]), train("failed", 7), train("search", 8), train("search", 9, parent=8)}

    def track(items: Iterable[Any], description: str, total: int) -> Iterable[Any]:
        if description == "Removing":
            active.add("cleared")
        return items

    assert GarbageCollection(store, replace(RULE, keep_runs=10), never).plan().removals == {}
    collection = GarbageCollection(store, RULE, lambda dag, run: run in active, track=track)
    assert collection.remove().removals.keys() == uris(*old) | unneeded
    curves = {uri.replace(".json", ".curves.json") for uri in retained}
    folder = store.internal("_trainings", "flights")
    assert {f"{folder}/{name}" for name in store.names(folder) if name != ".lock"} == retained | curves

    store.write_text(min(retained), "{}")
    with pytest.raises(BadInput, match="not a TrainingRecord"):
        GarbageCollection(store, RULE, never).remove()


def test_unfinished_artifacts_of_killed_tasks_are_removed(any_store: ArtifactStore) -> None:  # noqa: F811
    store, running = any_store, "manual__2026-01-01T00:00:00+00:00"
    staged = {}
    for run in ("killed", running):
        producer = Producer("flights", run, "transform")
        record_uses(store, producer, [make(store, "other", "examples", days=0, dag="trips")])
        writer = store.create(store.address(producer, "examples"), "examples", producer)
        if store.is_local:
            staged[run] = f"{store.uri('flights', run, 'transform')}/{writer.path.name}"
            (writer.path / "part-0").write_text("rows")
        else:
            staged[run] = writer.parts()
            store.files.write(f"{staged[run]}/train/part-0", b"rows")
            store.files.discard(writer.path)

    def collection(days: float) -> GarbageCollection:
        return GarbageCollection(store, RULE, lambda dag, run: run == running, NOW + timedelta(days=days))

    assert collection(29).plan().removals == {}
    (removal,) = collection(31).plan().removals.values()
    assert (removal.uri, removal.kind, removal.size_bytes) == (staged["killed"], "unfinished artifact", 4)
    assert removal.reason == "older than 30 days, not completed"
    assert abs(removal.created_at - NOW) < timedelta(hours=1)
    assert collection(31).remove().removals.keys() == {staged["killed"]}
    assert list(store.files.sizes(staged["killed"], staged=True)) == []
    assert list(store.files.sizes(staged[running], staged=True)) in (["part-0"], ["train/part-0"])


def test_next_collection_continues_a_killed_one(tmp_path: Path) -> None:
    store = ArtifactStore(str(tmp_path))
    retained, removed = make_run(store, "kept"), make_run(store, "old")
    write_record(store, "flights", ModelRecord(champion=served(retained[-1], 1)))

    def collect_and_die() -> None:
        def is_active(dag_id: str, run_id: str) -> bool:
            if store.files.folders_with(store.root, HIDDEN_NAME):
                os.kill(os.getpid(), signal.SIGKILL)
            return False

        GarbageCollection(store, RULE, is_active).remove()

    process = multiprocessing.get_context("fork").Process(target=collect_and_die)
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert set(store.files.folders_with(store.root, HIDDEN_NAME)) == uris(*removed)
    # A run began in between that uses one of them.
    record_uses(store, Producer("flights", "now", "train"), [removed[0]])
    assert GarbageCollection(store, RULE, never).remove().removals.keys() == uris(*removed[1:])
    assert set(store.artifacts(store.root)) == uris(*retained, removed[0])
    store.verify(removed[0])


def test_missing_and_unreadable_links_stop_the_collection(store: ArtifactStore) -> None:
    run, old = make_run(store, "run"), make_run(store, "old")
    write_record(store, "flights", ModelRecord(champion=served(run[-1], 1)))
    store.write_text(f"{run[-1].uri}/{MANIFEST_NAME}", "{")
    with pytest.raises(BadInput, match=r"nothing is removed.*run/model/model/manifest\.json"):
        GarbageCollection(store, RULE, never).remove()
    for gone in (run[0], run[-1]):
        make(store, "run", "model", run[1])
        store.remove_folder(gone.uri)
        with pytest.raises(BadInput, match=rf"nothing is removed: {re.escape(gone.uri)} .* is not in the store"):
            GarbageCollection(store, RULE, never).remove()
        run[0] = make(store, "run", "snapshot")
    assert all(store.exists(artifact.uri) for artifact in old)


def test_collections_exclude_each_other(store: ArtifactStore) -> None:
    make_run(store, "old")
    lock = exclusive(store, store.internal("_state", "retention"), "another", 1.0)
    with lock, pytest.raises(LockHeld, match="retention"):
        GarbageCollection(store, RULE, never).remove()


@pytest.mark.parametrize("rule", [{"keep_days": 0.5}, {"keep_days": float("nan")}, {"keep_runs": -1}])
def test_rule_is_checked(rule: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match=rf"{next(iter(rule))} is .*, expected a number of at least"):
        RetentionRule(**rule)


def captures_of(store: ArtifactStore) -> ArtifactStore:
    """Returns the place of captured requests beside a store."""
    root = store.root.rpartition("/")[0]
    return ArtifactStore(f"{root}/captured", storage_options=store.storage_options)


def capture(captures: ArtifactStore, days: float, folder: str = "flights", version: int = 1) -> str:
    """Writes a file as the server that captured requests so many days ago; returns its name."""
    name = f"{name_time(NOW - timedelta(days=days))}-v{version}-1.parquet"
    captures.files.write(f"{captures.root}/{folder}/{name}", b"rows")
    return name


def captured(captures: ArtifactStore) -> set[str]:
    return set(captures.files.sizes(captures.root))


def served_flights(store: ArtifactStore, **roles: ServedVersion) -> None:
    write_record(store, "flights", ModelRecord(champion=served(make_run(store, "champion")[-1], 1), **roles))


def skew(store: ArtifactStore, run: str, days: float, files: tuple[str, str]) -> Artifact:
    """Publishes a comparison of captured files."""
    facts = {"captured_until": "2026-01-01T00:00:00+00:00", "reference": {"model": "flights"}}
    return make(store, run, "skew", dag="monitor", days=days, **facts, captured_files=files)


@pytest.mark.slow
def test_needed_captured_requests_are_retained(any_store: ArtifactStore) -> None:  # noqa: F811
    store, captures = any_store, captures_of(any_store)
    names = {days: capture(captures, days) for days in range(100, 30, -5)}
    young = capture(captures, 5)
    others = [capture(captures, 90, folder) for folder in ("flights/_feedback", "unserved")]
    labels = {days: capture(captures, days, "flights/_feedback") for days in (99.5, 67.5, 5)}
    served_flights(
        store, challenger=replace(served(make_run(store, "new")[-1], 2), since=f"{NOW - timedelta(days=36)}")
    )
    skew(store, "retained", 20, (names[80], names[75]))
    skew(store, "removed", 70, (names[95], names[90]))
    performance = make(store, "p", "performance", days=20, model_name="flights", captured_files=[names[45], names[45]])
    state = store.internal("_state", "tasks", "monitor", "skew", "captured.json")
    runs = {"active": {"after": names[65], "until": names[60]}, "ended": {"after": None, "until": names[90]}}
    store.write_text(state, json.dumps({"until": names[35], "runs": runs, "models": ["flights"]}))
    logged = make(store, "log", "snapshot", days=40)
    note_window(store, "log", "window", LoggedWindow("flights", logged.uri, "rows"))
    collection = GarbageCollection(store, RULE, lambda dag, run: run == "active", NOW, captures)
    files, plan = captured(captures), collection.plan()
    assert plan.kept[logged.uri] == "has rows of the log of model flights"
    removed = {f"flights/{names[days]}" for days in (100, 95, 90, 85, 70, 65, 55, 50)}
    removed |= {f"flights/_feedback/{others[0]}", f"flights/_feedback/{labels[99.5]}"}
    removal = plan.removals[f"{captures.root}/flights"]
    assert set(removal.paths) == {path.removeprefix("flights/") for path in removed}
    assert (removal.kind, removal.size_bytes) == ("captured requests", 40)
    assert removal.reason == "older than 30 days, not needed (files: 10)"
    reasons = {uri.rpartition("/")[2]: reason for uri, reason in plan.kept.items() if uri.startswith(captures.root)}
    assert reasons == {
        names[80]: f"measured by {store.uri('monitor', 'retained', 'skew', 'skew')} (files: 2)",
        names[60]: "compared by run active of monitor (files: 1)",
        names[45]: f"measured by {performance.uri} (files: 2)",
        names[35]: "compared by the rollout of version 2 (files: 1)",
        young: "younger than 30 days (files: 2)",
        labels[67.5]: "labels of needed requests (files: 1)",
    }
    assert captured(captures) == files
    assert collection.remove().removals.keys() == plan.removals.keys()
    assert captured(captures) == files - removed
    assert collection.remove().removals == {}


def test_invalid_position_of_a_monitor_stops_the_collection(tmp_path: Path) -> None:
    store, captures = ArtifactStore(str(tmp_path / "store")), ArtifactStore(str(tmp_path / "captured"))
    served_flights(store)
    store.write_text(store.internal("_state", "tasks", "monitor", "skew", "captured.json"), "{}")
    with pytest.raises(BadInput, match=r"nothing is removed: .*captured\.json: not the position of a skew monitor"):
        GarbageCollection(store, RULE, never, NOW, captures).remove()


def test_removal_interrupted_by_a_kill_is_completed(tmp_path: Path) -> None:
    store, captures = ArtifactStore(str(tmp_path / "store")), ArtifactStore(str(tmp_path / "captured"))
    served_flights(store)
    names = [capture(captures, days) for days in (90, 80, 5)]
    make_run(store, "old")
    store.write_text(
        store.internal("_state", "checkpoints", "flights", "old", "train", "key", "step-1", "data"), "12345"
    )
    champion = {path for path in store.files.sizes(store.root) if path.startswith(("flights/champion", "_models"))}

    def track(items: Iterable[Any], description: str, total: int) -> Iterator[Any]:
        for number, item in enumerate(items):
            if description == "Removing" and number == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            yield item

    for _ in range(4):  # checkpoints, captured requests, examples and model
        dying = GarbageCollection(store, RULE, never, NOW, captures, track=track)
        process = multiprocessing.get_context("fork").Process(target=dying.remove)
        process.start()
        process.join()
        assert process.exitcode == -signal.SIGKILL
        assert champion <= store.files.sizes(store.root).keys()
    assert [each.kind for each in GarbageCollection(store, RULE, never, NOW, captures).remove().removals.values()] == [
        "snapshot"
    ]
    left = {path for path in store.files.sizes(store.root) if not path.startswith(("_cache", "_state/retention"))}
    assert left == champion
    assert captured(captures) == {f"flights/{names[-1]}"}
    assert not [place for place, folders, files in os.walk(tmp_path / "store" / "flights") if not folders + files]


def test_leftovers_of_ended_runs_are_removed(tmp_path: Path) -> None:
    store = ArtifactStore(str(tmp_path))
    snapshot = make(store, "kept", "snapshot", dag="trips", days=1)
    make(store, "old", "model")
    best = make(store, "young", "model", days=1)
    for run, model in (("old", "old"), ("young", "young")):
        store.write_text(
            store.internal("_state", "checkpoints", "flights", run, "train", "key", "step-1", "data"), "12345"
        )
        record_uses(store, Producer("flights", run, "train"), [snapshot])
        study = store.internal("_state", "studies", "flights", "search", run, "best")
        with store.create(study, "model", Producer("flights", run, "search")) as writer:
            (writer.path / "data").write_text(model)
            writer.commit()
    uses = store.uri("flights", "old", "train", "uses.json")
    old = (NOW - timedelta(days=90)).isoformat()
    for uri in (uses, store.internal("_state", "studies", "flights", "search", "old", "best", MANIFEST_NAME)):
        value = store.read_json(uri)
        store.write_text(uri, json.dumps({**value, ("at" if uri == uses else "created_at"): old}))
    ended = store.internal("_state", "jobs", "flights", "old", "train", "job")
    store.write_text(f"{ended}/1", "")
    store.remove_folder(ended)
    GarbageCollection(store, RULE, never).remove()
    assert "jobs" not in store.names(store.internal("_state"))
    assert set(store.artifacts(store.root)) == {
        *uris(snapshot, best),
        store.internal("_state", "studies", "flights", "search", "young", "best"),
    }
    assert (
        store.names(store.internal("_state", "checkpoints", "flights"))
        == store.names(store.uri("flights"))
        == ["young"]
    )
    assert store.exists(snapshot.uri) and store.names(store.uri("flights", "young")) == ["model", "train"]


RUNS = st.lists(
    st.tuples(
        st.sampled_from(["flights", "trips"]),
        st.integers(0, 80),  # age in days
        st.lists(st.integers(0, 40), max_size=3),  # inputs, among the artifacts made before
        st.booleans(),  # whether the run is active
        st.none() | st.tuples(st.integers(0, 30), st.integers(0, 30)),  # captured files that the run measured
    ),
    min_size=1,
    max_size=12,
)


@pytest.mark.slow
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    runs=RUNS,
    files=st.lists(st.integers(0, 100), max_size=30, unique=True),  # ages in days
    # A monitor of these requests, or of another model's, with the files that it has compared.
    compared=st.none() | st.tuples(st.sampled_from(["flights", "trips"]), st.none() | st.integers(0, 30)),
    champion=st.integers(0, 40),
    keep_days=st.integers(1, 60),
    keep_runs=st.integers(0, 3),
)
def test_links_of_retained_artifacts_stay_valid(
    runs: list[tuple[str, int, list[int], bool, tuple[int, int] | None]],
    files: list[int],
    compared: tuple[str, int | None] | None,
    champion: int,
    keep_days: int,
    keep_runs: int,
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store, captures = ArtifactStore(f"{folder}/store"), ArtifactStore(f"{folder}/captured")
        names = [capture(captures, days) for days in sorted(files, reverse=True)]
        windows = dict[str, list[str]]()
        made: list[Artifact] = []
        links, facts = dict[str, set[str]](), dict[str, tuple[str, int, bool]]()
        for number, (dag, days, chosen, active, window) in enumerate(runs):
            inputs = [made[each % len(made)] for each in chosen if made]
            kind, measured = "model", dict[str, Any]()
            if names and window is not None:
                first, last = sorted(each % len(names) for each in window)
                kind, measured = "skew", {"captured_files": [names[first], names[last]], "captured_until": f"{NOW}"}
                measured["reference"] = {"model": "flights"}
                windows[store.uri(dag, f"run-{number}", kind, kind)] = names[first : last + 1]
            made.append(make(store, f"run-{number}", kind, *inputs, days=days, dag=dag, **measured))
            links[made[-1].uri], facts[made[-1].uri] = uris(*inputs), (dag, days, active)
        serving = made[champion % len(made)]
        write_record(store, "flights", ModelRecord(champion=served(serving, 1)))
        unseen = list[str]()
        if names and compared is not None:
            model, last = compared
            seen = 0 if last is None else last % len(names) + 1
            unseen = names[seen:] if model == "flights" else []
            cursor = {"until": names[seen - 1] if seen else None, "runs": {}, "models": [model]}
            store.write_text(store.internal("_state", "tasks", "trips", "skew", "captured.json"), json.dumps(cursor))
        active_runs = {f"run-{number}" for number, run in enumerate(runs) if run[3]}
        rule = RetentionRule(keep_days, keep_runs)
        plan = GarbageCollection(store, rule, lambda dag_id, run_id: run_id in active_runs, NOW, captures).remove()

        newest = {
            dag: sorted(days for model, days, *_ in runs if model == dag)[:keep_runs] for dag in ("flights", "trips")
        }
        expected = {serving.uri} | {uri for uri, (_, days, active) in facts.items() if active or days < keep_days}
        needed = set(expected)
        while more := {link for uri in needed for link in links[uri]} - needed:
            needed |= more
        left = set(store.artifacts(store.root))
        assert needed <= left
        for uri in left:
            assert links[uri] <= left
        needed_files = {name for uri in left & windows.keys() for name in windows[uri]} | set(names[-1:])
        needed_files |= {capture_name for capture_name in names if capture_name > name_time(NOW - timedelta(keep_days))}
        needed_files |= set(unseen)
        assert captured(captures) == {f"flights/{name}" for name in needed_files}
        for uri in plan.removals.keys() & facts.keys():
            dag, days, _ = facts[uri]
            assert all(days >= retained for retained in newest[dag])
        if keep_runs == 0:
            assert left == needed


@pytest.mark.usefixtures("run_dag")  # makes Airflow's database
def test_command_lists_before_it_removes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hops: Any) -> None:
    places = {"store": str(tmp_path / "store"), "serving_capture_path": str(tmp_path / "captured")}
    extra = {**places, "tracking_uri": f"sqlite:///{tmp_path}/mlflow.db"}
    monkeypatch.setenv("AIRFLOW_CONN_HOPS_DEFAULT", json.dumps({"conn_type": "hops", "extra": extra}))
    store = ArtifactStore(places["store"])
    old, new = make_run(store, "old"), make_run(store, "new", days=50)
    write_record(store, "flights", ModelRecord())
    capture(ArtifactStore(places["serving_capture_path"]), 3)

    def collect(*options: str) -> tuple[int, str, str]:
        result: tuple[int, str, str] = hops("gc", *options)
        return result

    _, out, _ = collect("--keep-runs=1", "--kept", "--output=json")
    reasons = {row["artifact"]: row["kept because"] for row in json.loads(out)}
    assert {reasons[uri] for uri in uris(*old)} == {"this Airflow does not know its run (--unknown-runs removes it)"}
    _, out, err = collect("--keep-runs=1", "--unknown-runs", "--output=json")
    assert "Listing the store" in err and "Reading manifests" in err
    assert {row["artifact"] for row in json.loads(out)} == uris(*old)
    assert "3 items, 33 bytes, can be removed (add --delete to remove them)" in err
    assert all(store.exists(artifact.uri) for artifact in old)

    _, out, _ = collect("--keep-runs=1", "--unknown-runs", "--kept", "--output=json")
    rows = {row["artifact"]: row["kept because"] for row in json.loads(out)}
    assert uris(*new) < rows.keys() and next(iter(rows.values())) == "younger than 30 days (files: 1)"

    with create_session() as session:
        session.add(DagRun(dag_id="flights", run_id="old", run_type=DagRunType.MANUAL, state=DagRunState.RUNNING))
    assert "0 items, 0 bytes, removed" in collect("--keep-runs=1", "--delete")[2]
    with create_session() as session:
        session.execute(update(DagRun).where(DagRun.dag_id == "flights").values(state=DagRunState.SUCCESS))
    assert "3 items, 33 bytes, removed" in collect("--keep-runs=1", "--delete")[2]
    assert set(store.artifacts(store.root)) == uris(*new)
    code, _, err = collect("--keep-days=0")
    assert (code, "keep_days is 0" in err) == (1, True)


@pytest.mark.runtime
@pytest.mark.usefixtures("run_dag")
def test_mlflow_runs_are_removed_with_their_artifacts(
    warm_launcher: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hops: Any
) -> None:
    monkeypatch.setattr(RuntimeHook, "local_launcher", lambda hook: warm_launcher)
    extra = {"store": str(tmp_path / "store"), "tracking_uri": f"sqlite:///{tmp_path}/mlflow.db"}
    monkeypatch.setenv("AIRFLOW_CONN_HOPS_DEFAULT", json.dumps({"conn_type": "hops", "extra": extra}))
    hook = RuntimeHook("hops_default")
    hook.make_store()

    def ask(function: str, **params: Any) -> Any:
        spec = StepSpec(
            function, f"ask_mlflow:{function}", params=params, code_paths=(str(Path(ask_mlflow.__file__).parent),)
        )
        return hook.run(spec, cache=False).value

    store = hook.store
    models = {name: make_run(store, name) for name in ("served", "aliased", "removed")}
    write_record(store, "served", ModelRecord(champion=served(models["served"][-1], 1)))
    ask("track_models", models={name: run[-1].uri for name, run in models.items()}, alias="aliased")

    rows = json.loads(hops("gc", "--keep-runs=0", "--unknown-runs", "--delete", "--output=json")[1])
    reason = f"its model is removed: {models['removed'][-1].uri}"
    assert [row["kind"] for row in rows] == ["MLflow entry"] * 3 + ["examples", "model", "snapshot"]
    assert rows[0]["artifact"] == "models:/removed/1" and {row["reason"] for row in rows[:3]} == {reason}
    assert ask("tracked") == {
        "runs": sorted(models[name][-1].uri for name in ("aliased", "served")),
        "others": ["aliased", "of another program", "served"],
        "versions": ["aliased", "served"],
    }
    assert set(store.artifacts(store.root)) == uris(*models["served"], *models["aliased"])


def test_failing_mlflow_removes_nothing(tmp_path: Path) -> None:
    store = ArtifactStore(str(tmp_path))
    old = make_run(store, "old")

    def tracked(delete: Sequence[str]) -> list[dict[str, Any]]:
        if delete:
            raise HopsError("MLflow at http://mlflow: no answer")
        return [{"uri": "runs:/1", "model": old[-1].uri, "created_at": NOW.isoformat(), "aliases": []}]

    with pytest.raises(HopsError, match="no answer"):
        GarbageCollection(store, RULE, never, tracked=tracked).remove()
    for artifact in old:
        store.verify(artifact)


def test_operator_asks_airflow_for_active_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    extra = {
        "store": str(tmp_path),
        "runtime": str(tmp_path / "none"),
        "tracking_uri": f"sqlite:///{tmp_path}/none.db",  # without a tracking database, no step asks MLflow
    }
    monkeypatch.setenv("AIRFLOW_CONN_OLD_STORE", json.dumps({"conn_type": "hops", "extra": extra}))
    store = ArtifactStore(str(tmp_path))
    runs = {run: make_run(store, run) for run in ("ended", "running", "unknown")}
    new = make_run(store, "new", days=50)

    def count(dag_id: str, run_ids: list[str], states: list[str] | None = None) -> int:
        return run_ids == ["running"] if states else run_ids != ["unknown"]

    context: Any = {"ti": SimpleNamespace(get_dr_count=count)}

    def collect(**options: Any) -> dict[str, Any]:
        operator = CollectGarbageOperator(task_id="collect", keep_runs=1, hops_conn_id="old_store", **options)
        return operator.execute(context)

    size = sum(len(f"ended {artifact.kind}") for artifact in runs["ended"])
    listed = collect()
    assert (listed["deleted"], listed["removed"], listed["removed_bytes"], listed["kept"]) == (False, 3, size, 9)
    assert collect(delete=True)["removed"] == 3
    assert collect(delete=True, unknown_runs=True)["removed"] == 3
    assert set(store.artifacts(store.root)) == uris(*new, *runs["running"])


def test_plan_of_an_empty_store_is_empty(tmp_path: Path) -> None:
    assert GarbageCollection(ArtifactStore(str(tmp_path)), RULE, never).plan() == RetentionPlan({}, {}, 0)


def test_newest_decision_of_a_monitor_retains_what_it_names(tmp_path: Path) -> None:
    store = ArtifactStore(str(tmp_path))
    reports = make(store, "first", "skew"), make(store, "second", "skew")
    folder = store.internal("_state", "tasks", "monitoring", "retrain", "decisions")
    for number, report in enumerate(reports, 1):
        store.write_text(f"{folder}/00000{number}.json", json.dumps({"findings": [{"report": report.uri}]}))
    plan = GarbageCollection(store, RULE, never).plan()
    assert (plan.kept, plan.removals.keys()) == (
        {reports[1].uri: "newest decision of monitoring, task retrain"},
        uris(reports[0]),
    )


def test_garbage_collection_keeps_the_champions_of_runs_but_no_chain(tmp_path: Path) -> None:
    store = ArtifactStore(str(tmp_path))
    one = make_continued(store, "one")
    promote(store, one, 1)
    champion_of_run(store, Producer("late", "running", "train"), "late")
    champion_of_run(store, Producer("late", "over", "train"), "late")
    two = make_continued(store, "two", champion=one)
    promote(store, two, 2)
    rule, later = RetentionRule(keep_days=1, keep_runs=0, keep_versions=0), datetime.now(UTC) + timedelta(days=2)
    collection = GarbageCollection(store, rule, lambda dag_id, run_id: run_id == "running", later)
    assert collection.plan().kept.keys() == {one.uri, two.uri}
    GarbageCollection(store, rule, lambda dag_id, run_id: False, later).remove()
    assert store.artifacts(store.root) == [two.uri] and store.names(store.uri("late")) == ["two"]
    assert GarbageCollection(store, rule, lambda dag_id, run_id: False, later).plan().removals == {}
