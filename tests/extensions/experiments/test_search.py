"""The search operator, and ``@task.search``."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk import DAG, task
from waiting import wait_for

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.errors import BadInput
from airflow_hops.extensions.experiments import SearchOperator, Uniform
from airflow_hops.extensions.experiments.core.studies import StudyFolder, study_folder

DAGS = "tests/extensions/experiments/dags"
SEARCH: dict[str, Any] = {"task_id": "search", "train": "model:train", "metric": "auc", "direction": "maximize"}


def test_unusable_search_fails_dag_parsing() -> None:
    with pytest.raises(BadInput, match="low below high"):
        SearchOperator(space={"lr": Uniform(1, 0)}, **SEARCH)
    with pytest.raises(BadInput, match=r"space is \{\}"):
        SearchOperator(space={}, **SEARCH)
    for name, value in {"sampler": "best", "pruner": "half", "trials": 0, "parallel": None, "timeout": 0}.items():
        with pytest.raises(BadInput, match=f"{name} is {value!r}, expected"):
            SearchOperator(space={"lr": Uniform(0, 1)}, **SEARCH, **{name: value})
    with pytest.raises(BadInput, match="direction is 'up'"):
        SearchOperator(space={"lr": Uniform(0, 1)}, **{**SEARCH, "direction": "up"})
    with pytest.raises(BadInput, match="refit_np is 2"):
        SearchOperator(space={"lr": Uniform(0, 1)}, refit=True, refit_np=2, **SEARCH)
    operator = SearchOperator(space={"lr": Uniform(0, 1)}, np=2, **SEARCH)
    assert operator.strategy == "horovod"


def test_shared_study_is_never_cached() -> None:
    for study in (None, "lr"):
        operator = SearchOperator(space={"lr": Uniform(0, 1)}, study=study, cache=True, **SEARCH)
        assert operator._cache_enabled() is (study is None)
        assert operator.step_params({})["reuse"] is True  # type: ignore[typeddict-item]


def test_the_example_evaluates_the_best_of_pruned_trials() -> None:
    from flights_search import dag

    search = dag.get_task("search")
    assert isinstance(search, SearchOperator) and search.np == 1
    assert (search.search["parallel"], search.search["pruner"]) == (2, "median")
    assert (search.upstream_task_ids, search.downstream_task_ids) == ({"transform"}, {"evaluate"})


def test_search_over_unversioned_data_is_not_cached() -> None:
    space = {"lr": Uniform(0, 1)}
    assert not SearchOperator(space=space, **SEARCH)._cache_enabled()
    assert SearchOperator(space=space, examples="{{ examples }}", **SEARCH)._cache_enabled()
    assert SearchOperator(space=space, cache=True, **SEARCH)._cache_enabled()


def test_two_tasks_search_with_one_function() -> None:
    with DAG("d", schedule=None):

        @task.search(space={"leaves": [1, 2]}, metric="auc", direction="maximize", trials=2)
        def train(context, leaves, depth=3): ...

        train()
        train.override(task_id="other", space={"depth": [1, 2]})(leaves=5)


@pytest.mark.runtime
def test_searches_of_a_dag(
    shared_run_step: Any, transformed_examples: Any, run_dag: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    store = shared_run_step.store
    extra = {"store": store.root, "tracking_uri": f"sqlite:///{tmp_path}/mlflow.db"}
    monkeypatch.setenv("AIRFLOW_CONN_HOPS_DEFAULT", json.dumps({"conn_type": "hops", "extra": extra}))
    run = run_dag("search", {"examples": transformed_examples.to_dict()}, DAGS)
    assert str(run.state) == "success"
    returned = {ti.task_id: ti.xcom_pull(task_ids=ti.task_id) for ti in run.get_task_instances()}
    model = Artifact.from_dict(returned["trees"])
    folder = study_folder(store, "search", "trees", run.run_id)
    record, trials = folder.read(), folder.trials()
    assert record is not None and record.counts == {"complete": 4} and record.training
    assert {(trial.params["leaf"], trial.params["depth"]) for trial in trials} == {(200, 1), (200, 4), (3, 1), (3, 4)}
    best = trials[record.best or 0]
    assert model.properties["params"].items() >= {**best.params, "criterion": "entropy"}.items()
    numbers = study_folder(store, "search", "numbers", run.run_id)
    result = numbers.trials()
    assert returned["numbers"]["metrics"]["distance"] == min(trial.values[0] for trial in result)
    assert [trial.values for trial in result] == [[abs(trial.params["k"] - 7)] for trial in result]


def stop_first(folder: StudyFolder) -> None:
    """Asks to stop the first trial as soon as it runs."""
    wait_for(lambda: folder.read() and folder.trials(), "a trial", 300)
    folder.request_stop(0, "ann")


@pytest.mark.runtime
@pytest.mark.spark
@pytest.mark.scheduled(part="clusters")
def test_trials_are_tasks_of_a_spark_application(
    shared_run_step: Any, run_dag: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__HOPS__STORE", shared_run_step.store.root)
    monkeypatch.setenv("AIRFLOW_CONN_HOPS_SPARK", '{"conn_type": "hops", "extra": {"ranks_conn_id": "spark_local"}}')
    folder = study_folder(shared_run_step.store, "search_spark", "search", "shared")
    stopping = threading.Thread(target=stop_first, args=(folder,))
    stopping.start()
    run = run_dag("search_spark", {}, DAGS)
    stopping.join()
    assert str(run.state) == "success"
    assert run.get_task_instance("search").xcom_pull(task_ids="search")["params"] == {"k": 1}
    trials = folder.trials()
    assert [trial.state for trial in trials] == ["stopped", "complete", "failed"]
    assert "ValueError: 30 is far from 0" in trials[2].reason


DAG_FILE = """
from airflow.sdk import DAG
from airflow_hops.extensions.experiments import SearchOperator
with DAG("search", schedule=None):
    SearchOperator(train="trials:train", space={space}, metric="auc", direction="maximize", params={{"depth": 2}})
"""


@pytest.mark.parametrize(
    ("number", "function", "space", "expected"),
    [
        (0, "def train(context, lr, depth): ...", '{"lr": [0.1, 0.2]}', None),
        (1, "def train(context, lr, size): ...", '{"lr": [0.1, 0.2]}', "trials.py:1: train takes (context, lr, size)"),
        (2, "def train(context, lr, size): ...", '"trials:space"', None),
        (3, "def train(): ...", '"trials:space"', "trials.py:1: train takes (no arguments), but is called with 1"),
        (4, "def train(context): ...", '"trials:spaces"', "has no function 'spaces'; did you mean 'space'?"),
    ],
)
def test_functions_of_a_search_are_checked(
    tmp_path: Path, number: int, function: str, space: str, expected: str | None
) -> None:
    (tmp_path / "trials.py").write_text(f"{function}\ndef space(trial): ...\n")
    file = tmp_path / f"search_{number}.py"
    file.write_text(DAG_FILE.format(space=space))
    errors = "\n".join(DagBag(file).import_errors.values())
    assert errors == "" if expected is None else expected in errors
