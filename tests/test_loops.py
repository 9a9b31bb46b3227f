"""Task groups in loops, which Airflow has since 3.4: each iteration has its own artifacts and addresses."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import airflow.sdk
import pytest
from airflow.models.taskinstance import TaskInstance, clear_task_instances
from airflow.utils.session import create_session
from sqlalchemy import select

from airflow_hops.core.artifacts.artifact import Producer
from airflow_hops.core.store import ArtifactStore
from airflow_hops.operators.links import DATA_LINK
from airflow_hops.web.artifacts.lookup import find_artifact, is_of, task_instance
from airflow_hops.web.artifacts.routes import list_run_artifacts
from airflow_hops.web.artifacts.tasks import returned_by_runs
from airflow_hops.web.pipelines.tasks import get_task_result, list_run_stages

needs_loops = pytest.mark.skipif(not hasattr(airflow.sdk, "LoopDecision"), reason="Airflow has loops since 3.4")


@pytest.mark.parametrize(
    ("map_index", "iteration", "segment", "instance"),
    [(-1, -1, "step", "-1"), (3, -1, "step@3", "3"), (-1, 0, "step@i0", "i0"), (3, 12, "step@i12@3", "i12@3")],
)
def test_task_instance_address_has_its_iteration(map_index: int, iteration: int, segment: str, instance: str) -> None:
    producer = Producer("dag", "run", "step", map_index, iteration=iteration)
    assert (producer.task, producer.instance) == (segment, instance)
    assert Producer.of_task("dag", "run", segment) == producer
    assert task_instance("dag", "run", "step", instance) == producer


def test_link_names_the_iteration() -> None:
    instance: Any = SimpleNamespace(dag_id="dag", run_id="run", task_id="step", map_index=-1)
    instance.get_template_context = lambda: {"loop": SimpleNamespace(index=2)}
    address = DATA_LINK.get_link(SimpleNamespace(output_kind="statistics"), ti_key=instance)
    assert parse_qs(urlsplit(address).query)["artifact"] == ["statistics/dag/step/i2/run"]


@needs_loops
def test_each_iteration_has_its_own_artifacts(
    run_dag: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runtime: Path
) -> None:
    for name in ("0", "1", "2", "a", "b"):
        (tmp_path / f"{name}.csv").write_text(f"value\n{name}\n")
    value = {"conn_type": "hops", "extra": {"store": str(tmp_path / "store"), "runtime": str(runtime)}}
    monkeypatch.setenv("AIRFLOW_CONN_HOPS_DEFAULT", json.dumps(value))
    run = run_dag("loops", {"folder": str(tmp_path)})
    assert run.state == "success"
    store = ArtifactStore(str(tmp_path / "store"))

    def by(task_id: str, iteration: int, map_index: int = -1) -> Producer:
        return Producer("loops", run.run_id, f"rounds.{task_id}", map_index, iteration=iteration)

    ingested = [store.manifest(store.address(by("ingest", i), "snapshot")) for i in range(3)]
    assert len({each.fingerprint for each in ingested}) == 3
    for i, manifest in enumerate(ingested):
        assert manifest.producer == by("ingest", i)
        note = store.address(by("note", i), "notes")
        assert store.read_text(f"{note}/note.txt") == f"{i} {manifest.fingerprint}"  # its own iteration's
    outside = next(ti for ti in run.get_task_instances() if ti.task_id == "collect").xcom_pull("collect")
    assert outside == [store.address(by("ingest", i), "snapshot") for i in range(3)]

    listed = list_run_artifacts("loops", run.run_id)
    each = [by("each", i, index) for i in range(3) for index in (0, 1)]
    assert [entry.producer for entry in listed] == [by("ingest", i) for i in range(3)] + each + [
        by("note", i) for i in range(3)
    ]
    assert [entry.maker.producer for entry in listed if entry.maker] == [entry.producer for entry in listed]
    for task, kind in [*((by("ingest", i), "snapshot") for i in range(3)), *((task, "snapshot") for task in each)]:
        assert find_artifact(None, None, task, kind).manifest.producer == task  # type: ignore[arg-type]
        assert [entry.producer for entry in get_task_result(task).artifacts] == [task]
    stages = list_run_stages("loops", run.run_id).stages
    assert [(stage.iteration, stage.map_index) for stage in stages if stage.task_id == "rounds.each"] == [
        (i, index) for i in range(3) for index in (0, 1)
    ]
    with create_session() as session:  # what a cleared task returned is history
        cleared = session.scalars(select(TaskInstance).where(*is_of(TaskInstance, by("ingest", 1)))).all()
        assert len(cleared) == 1
        clear_task_instances(cleared, session)
        session.flush()
        returned = {each.task for each in returned_by_runs(session, "loops", [run.run_id])}
    assert [by("ingest", i) in returned for i in range(3)] == [True, False, True]
    whole = get_task_result(by("ingest", -1))
    assert [(instance.iteration, instance.map_index) for instance in whole.instances] == [(0, -1), (1, -1), (2, -1)]
