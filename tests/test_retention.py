"""Garbage collection of a store: what is needed stays, the rest goes, also after kills and beside running tasks."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import signal
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.models.dagrun import DagRun
from airflow.utils.session import create_session
from airflow.utils.state import DagRunState
from airflow.utils.types import DagRunType
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import delete
from test_store import any_store, s3_endpoint, s3_store  # noqa: F401

from airflow_hops.cli.definition import _STORE_COMMANDS
from airflow_hops.core.contract.artifacts import MANIFEST_NAME, Artifact, BadInput, HopsError, Producer
from airflow_hops.core.contract.model_record import ModelRecord, ServedVersion
from airflow_hops.core.store import ArtifactStore
from airflow_hops.core.store.model_records import write_record
from airflow_hops.core.store.retention import (
    HIDDEN_NAME,
    RetentionPlan,
    RetentionRule,
    plan_removals,
    remove_unneeded,
)
from airflow_hops.core.store.schema_history import freeze_schema
from airflow_hops.core.store.step_cache import find_cached, record_cached
from airflow_hops.core.store.uses import record_uses

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


def test_lineage_of_what_serves_stays(any_store: ArtifactStore) -> None:  # noqa: F811
    store = any_store
    first, second, third, rejected = (make_run(store, f"run-{number}") for number in range(4))
    frozen = freeze_schema(
        store, store.uri("flights", "_frozen", "schema", "schema"), "", producer=Producer(), note="", features=[]
    )
    deployments = [
        make(store, f"run-{number}", "deployment", run[-1], model_name="flights", version=number + 1, mode="champion")
        for number, run in enumerate((first, second, third))
    ]
    record = ModelRecord(champion=served(third[-1], 3))
    for version in (1, 2, 3):
        record = record.after("deployed", version, "test")
    write_record(store, "flights", record)
    plan = plan_removals(store, RULE, never)
    assert plan.kept.keys() == uris(*third, deployments[1], *second, frozen) | {
        uri for uri in store.artifacts(store.root) if "/history/" in uri
    }
    assert plan.kept[third[-1].uri] == "champion of model flights"
    assert plan.kept[second[0].uri] == f"input of {second[1].uri}"
    assert plan.removals.keys() == uris(*first, *rejected, deployments[0], deployments[2])
    assert plan.removals[first[0].uri].size_bytes == len("run-0 snapshot")
    assert store.exists(first[0].uri), "a plan removes nothing"

    assert remove_unneeded(store, RULE, never).removals.keys() == plan.removals.keys()
    assert set(store.artifacts(store.root)) == plan.kept.keys()
    assert store.names(first[0].uri) == []
    for artifact in (*second, *third):
        store.verify(artifact)
    cache_hit, why = find_cached(store, Producer("flights", "new", "model"), {"run": "run-0"})
    assert (cache_hit, why) == (None, "the task has not run before") or cache_hit is None


def test_rule_keeps_runs(any_store: ArtifactStore) -> None:  # noqa: F811
    store = any_store
    runs = {days: make_run(store, f"run-{days}", days) for days in (10, 40, 50, 60, 70)}
    other = make(store, "other-run", "snapshot", days=90, dag="trips")
    make(store, "younger", "model", runs[70][1], days=1, dag="reader")

    def is_active(dag_id: str, run_id: str) -> bool:
        return (dag_id, run_id) == ("flights", "run-60")

    plan = plan_removals(store, RetentionRule(keep_days=30, keep_runs=2), is_active)
    assert plan.removals.keys() == uris(*runs[50], runs[70][-1])
    assert "younger than 30 days" in plan.kept[runs[10][0].uri]
    assert "newest 2 of flights" in plan.kept[runs[40][0].uri]
    assert "queued or running" in plan.kept[runs[60][0].uri]
    assert other.uri in plan.kept


def test_artifacts_that_a_run_uses_stay(any_store: ArtifactStore) -> None:  # noqa: F811
    """A cached result and an input of another DAG count before the run's own manifests name them."""
    store = any_store
    cached, foreign = make_run(store, "old"), make(store, "old", "snapshot", dag="trips")
    hit, _ = find_cached(store, Producer("flights", "now", "examples"), {"run": "old"})
    assert hit is not None
    record_uses(store, Producer("flights", "now", "train"), [foreign, hit])
    assert remove_unneeded(store, RULE, never).removals.keys() == uris(cached[-1])
    assert plan_removals(store, RULE, never, NOW + timedelta(days=31)).kept == {}


def test_use_during_a_collection_restores_the_artifact(any_store: ArtifactStore) -> None:  # noqa: F811
    store = any_store
    used, unused = make_run(store, "used"), make_run(store, "unused")

    def is_active(dag_id: str, run_id: str) -> bool:
        # The first pass has read the uses by now; the second one sees this.
        record_uses(store, Producer("flights", "now", "train"), [used[-1]])
        return False

    assert remove_unneeded(store, RULE, is_active).removals.keys() == uris(*unused)
    for artifact in used:
        store.verify(artifact)
    assert store.files.folders_with(store.root, HIDDEN_NAME) == []


def test_next_collection_continues_a_killed_one(tmp_path: Path) -> None:
    store = ArtifactStore(str(tmp_path))
    retained, removed = make_run(store, "kept"), make_run(store, "old")
    write_record(store, "flights", ModelRecord(champion=served(retained[-1], 1)))

    def collect_and_die() -> None:
        def is_active(dag_id: str, run_id: str) -> bool:
            if store.files.folders_with(store.root, HIDDEN_NAME):
                os.kill(os.getpid(), signal.SIGKILL)
            return False

        remove_unneeded(store, RULE, is_active)

    process = multiprocessing.get_context("fork").Process(target=collect_and_die)
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    assert set(store.files.folders_with(store.root, HIDDEN_NAME)) == uris(*removed)
    # A run began in between that uses one of them.
    record_uses(store, Producer("flights", "now", "train"), [removed[0]])
    assert remove_unneeded(store, RULE, never).removals.keys() == uris(*removed[1:])
    assert set(store.artifacts(store.root)) == uris(*retained, removed[0])
    store.verify(removed[0])


def test_unreadable_links_stop_the_collection(any_store: ArtifactStore) -> None:  # noqa: F811
    old, damaged = make_run(any_store, "old"), make_run(any_store, "damaged")
    any_store.write_text(f"{damaged[-1].uri}/{MANIFEST_NAME}", "{")
    with pytest.raises(BadInput, match=r"nothing is removed.*damaged/model/model/manifest\.json"):
        remove_unneeded(any_store, RULE, never)
    assert all(any_store.exists(artifact.uri) for artifact in old)


def test_two_collections_do_not_meet(tmp_path: Path) -> None:
    store = ArtifactStore(str(tmp_path))
    make_run(store, "old")
    with store.lock(store.uri("_state", "retention")), pytest.raises(HopsError, match="another garbage collection"):
        remove_unneeded(store, RULE, never)


@pytest.mark.parametrize("rule", [{"keep_days": 0.5}, {"keep_days": float("nan")}, {"keep_runs": -1}])
def test_rule_is_checked(rule: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match=rf"{next(iter(rule))} is .*, expected a number of at least"):
        RetentionRule(**rule)


RUNS = st.lists(
    st.tuples(
        st.sampled_from(["flights", "trips"]),
        st.integers(0, 80),  # age in days
        st.lists(st.integers(0, 40), max_size=3),  # inputs, among the artifacts made before
        st.booleans(),  # whether the run is active
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(runs=RUNS, champion=st.integers(0, 40), keep_days=st.integers(1, 60), keep_runs=st.integers(0, 3))
def test_no_link_of_a_kept_artifact_breaks(
    runs: list[tuple[str, int, list[int], bool]], champion: int, keep_days: int, keep_runs: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = ArtifactStore(folder)
        made: list[Artifact] = []
        links, facts = dict[str, set[str]](), dict[str, tuple[str, int, bool]]()
        for number, (dag, days, chosen, active) in enumerate(runs):
            inputs = [made[each % len(made)] for each in chosen if made]
            made.append(make(store, f"run-{number}", "model", *inputs, days=days, dag=dag))
            links[made[-1].uri], facts[made[-1].uri] = uris(*inputs), (dag, days, active)
        serving = made[champion % len(made)]
        write_record(store, "flights", ModelRecord(champion=served(serving, 1)))
        active_runs = {f"run-{number}" for number, run in enumerate(runs) if run[3]}
        plan = remove_unneeded(
            store, RetentionRule(keep_days, keep_runs), lambda dag_id, run_id: run_id in active_runs, NOW
        )

        newest = {dag: sorted(days for of, days, *_ in runs if of == dag)[:keep_runs] for dag in ("flights", "trips")}
        expected = {serving.uri} | {uri for uri, (_, days, active) in facts.items() if active or days < keep_days}
        needed = set(expected)
        while more := {link for uri in needed for link in links[uri]} - needed:
            needed |= more
        left = set(store.artifacts(store.root))
        assert needed <= left
        for uri in left:
            assert links[uri] <= left
        for uri in plan.removals:
            assert facts[uri][1] not in newest[facts[uri][0]][:-1]
        if keep_runs == 0:
            assert left == needed


def run_command(*options: str) -> None:
    """Runs ``airflow hops store gc``."""
    (command,) = [command for command in _STORE_COMMANDS if command.name == "gc"]
    parser = argparse.ArgumentParser()
    for arg in command.args:
        arg.add_to_parser(parser)
    command.func(parser.parse_args(options))


@pytest.mark.usefixtures("run_dag")  # makes Airflow's database
def test_command_lists_before_it_removes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(
        "AIRFLOW_CONN_HOPS_DEFAULT", json.dumps({"conn_type": "hops", "extra": {"store": str(tmp_path)}})
    )
    store = ArtifactStore(str(tmp_path))
    old, new = make_run(store, "old"), make_run(store, "new", days=50)
    run_command("--keep-runs=1", "--output=json")
    output = capsys.readouterr()
    assert {row["artifact"] for row in json.loads(output.out)} == uris(*old)
    assert "3 artifacts, 33 bytes, can be removed (add --delete to remove them)" in output.err
    assert all(store.exists(artifact.uri) for artifact in old)

    run_command("--keep-runs=1", "--kept", "--output=json")
    assert {row["artifact"] for row in json.loads(capsys.readouterr().out)} == uris(*new)

    with create_session() as session:
        session.add(DagRun(dag_id="flights", run_id="old", run_type=DagRunType.MANUAL, state=DagRunState.RUNNING))
    run_command("--keep-runs=1", "--delete")
    assert "0 artifacts, 0 bytes, removed" in capsys.readouterr().err
    with create_session() as session:
        session.execute(delete(DagRun).where(DagRun.dag_id == "flights"))
    run_command("--keep-runs=1", "--delete")
    assert "3 artifacts, 33 bytes, removed" in capsys.readouterr().err
    assert set(store.artifacts(store.root)) == uris(*new)
    with pytest.raises(SystemExit, match="keep_days is 0"):
        run_command("--keep-days=0")


def test_operator_removes_what_nothing_needs(
    run_dag: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_OLD_STORE", json.dumps({"conn_type": "hops", "extra": {"store": str(tmp_path)}}))
    store = ArtifactStore(str(tmp_path))
    old, new = make_run(store, "old"), make_run(store, "new", days=50)
    run = run_dag("garbage", {"hops_conn_id": "old_store"})
    (task,) = run.get_task_instances()
    assert task.state == "success"
    assert task.xcom_pull(task_ids="collect") == {
        "deleted": True,
        "removed": 3,
        "removed_bytes": 33,
        "kept": 3,
        "kept_bytes": 33,
    }
    assert set(store.artifacts(store.root)) == uris(*new)
    assert store.names(old[0].uri) == []


def test_plan_of_an_empty_store(tmp_path: Path) -> None:
    assert plan_removals(ArtifactStore(str(tmp_path)), RULE, never) == RetentionPlan({}, {}, 0)
