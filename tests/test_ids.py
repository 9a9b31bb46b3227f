"""Ids that Airflow allows: in letters of any language."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.runner.runtime import RuntimeHook

DAG_FILE = """
from airflow.sdk import DAG, TaskGroup
from airflow_hops.operators import IngestOperator, Source, StatisticsOperator

with DAG("prévision_天气", schedule=None):
    with TaskGroup("étape-1"):
        IngestOperator(task_id="données.brutes", sources={"événements": Source("TABLE")})
        StatisticsOperator.partial(task_id="статистика").expand(source=["TABLE", "TABLE"])
"""
DAG, RUN = "prévision_天气", "manuel é ~ 1:2"


@pytest.fixture
def dag(tmp_path: Path) -> Any:
    """A DAG whose ids are in letters of many languages."""
    from airflow.dag_processing.dagbag import DagBag

    (tmp_path / "été.csv").write_text("âge\n1\n2\n")
    (tmp_path / "dags").mkdir()
    (tmp_path / "dags" / "prévision.py").write_text(DAG_FILE.replace("TABLE", str(tmp_path / "été.csv")))
    bag = DagBag(tmp_path / "dags")
    assert not bag.import_errors
    return bag.dags[DAG]


@pytest.mark.usefixtures("run_dag")  # for its database
def test_non_ascii_ids_are_listed(dag: Any) -> None:
    from airflow.models import DagModel
    from airflow.models.asset import AssetModel
    from airflow.models.dagbundle import DagBundleModel
    from airflow.serialization.definitions.dag import SerializedDAG
    from airflow.serialization.serialized_objects import LazyDeserializedDAG
    from airflow.utils.session import create_session

    with create_session() as session:
        session.merge(DagBundleModel(name="testing"))
        session.flush()
        SerializedDAG.bulk_write_to_db("testing", None, [LazyDeserializedDAG.from_dag(dag)])
        assert session.get(DagModel, DAG) is not None
        names = {asset.name for asset in session.query(AssetModel) if asset.name.startswith(DAG)}
    assert names == {f"{DAG}.étape-1.données.brutes"}


@pytest.mark.runtime
def test_steps_with_non_ascii_ids_run_and_are_found(
    dag: Any, warm_launcher: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    extra = {"store": str(tmp_path / "größe"), "runtime": str(warm_launcher.runtime)}
    monkeypatch.setenv("AIRFLOW_CONN_HOPS_DEFAULT", json.dumps({"conn_type": "hops", "extra": extra}))
    monkeypatch.setattr(RuntimeHook, "local_launcher", lambda hook: warm_launcher)
    RuntimeHook().make_store()
    task, made = dag.get_task("étape-1.données.brutes"), []
    for index in (0, 1):
        ti = SimpleNamespace(dag_id=DAG, run_id=RUN, task_id=task.task_id, map_index=index, try_number=1)
        spec = task.build_spec(RuntimeHook(), {"ti": ti, "dag": dag, "params": {}})
        made.append(Artifact.from_dict(RuntimeHook().run(spec).value))
    assert [artifact.cached for artifact in made] == [False, True]
    producer = RuntimeHook().store.manifest(made[0].uri).producer
    assert (producer.dag_id, producer.run_id, producer.task_id) == (DAG, RUN, task.task_id)
    assert [link.get_link(task, ti_key=ti).isascii() for link in task.operator_extra_links] == [True]
