"""``@task.hops``: functions of a DAG file, run in the runtime environment."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from airflow.sdk import DAG, task
from world import results, states

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.errors import StepFailed
from airflow_hops.runner.runtime import RuntimeHook

pytestmark = pytest.mark.runtime
LIMIT = 7


def test_functions_exchange_values_and_artifacts(run_dag: Callable[..., Any], runtime: Path) -> None:
    run = run_dag("task_hops", {})
    assert run.state == "success"
    values = results(run)
    assert values["squares"]["values"] == [1.125, 2.125, 5.125, 10.125]
    assert values["squares"]["sum"] == 18.5
    assert values["squares"]["environment"] == str(runtime)
    report = Artifact.from_dict(values["report"])
    assert (report.kind, report.metrics) == ("report", {"total": 18.5})
    kind, text, task_id, b = values["read_report"]
    assert (kind, task_id, b) == ("report", "read_report", "b")
    assert text.startswith("18.5 on 20")
    assert RuntimeHook().store.verify(report).kind == "report"


def test_function_is_mapped(run_dag: Callable[..., Any]) -> None:
    assert results(run_dag("task_hops_mapped", {}))["total"] == 3.0


def test_mapped_group_begins_with_ingest(run_dag: Callable[..., Any], tmp_path: Path) -> None:
    for name, rows in (("a", 2), ("b", 3)):
        (tmp_path / f"{name}.csv").write_text("x\n" + "1\n" * rows)
    run = run_dag("mapped_sources", {"folder": str(tmp_path)})
    assert run.state == "success"
    ingests = [ti for ti in run.get_task_instances() if "ingest" in ti.task_id]
    made = [(ti.task_id, ti.xcom_pull(ti.task_id, map_indexes=ti.map_index)["rows"]["rows"]) for ti in ingests]
    assert sorted((task, rows["rows_out"]) for task, rows in made) == [
        ("ingest", 2), ("of_each.ingest", 2), ("of_each.ingest", 3),
    ]  # fmt: skip


def test_second_run_does_not_begin_in_an_empty_mount_point(
    run_dag: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new store is made by a first run; later runs wait until it is there again."""
    store, source = tmp_path / "store", tmp_path / "source"
    monkeypatch.setenv("AIRFLOW_CONN_HOPS_DEFAULT", json.dumps({"conn_type": "hops", "extra": {"store": str(store)}}))
    source.mkdir()
    for name in ("a", "b"):
        (source / f"{name}.csv").write_text("x\n1\n")
    assert run_dag("mapped_sources", {"folder": str(source)}).state == "success"
    store.rename(tmp_path / "moved")
    store.mkdir()
    assert states(run_dag("mapped_sources", {"folder": str(source)}))["ingest"] == "failed"
    assert list(store.iterdir()) == []
    store.rmdir()
    (tmp_path / "moved").rename(store)
    assert run_dag("mapped_sources", {"folder": str(source)}).state == "success"


def test_non_json_argument_fails_without_retry(
    run_dag: Callable[..., Any], caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    assert states(run_dag("task_hops_bad_argument", {}))["take"] == "failed"
    assert "argument 0 of take() is a" in "".join(capfd.readouterr()) + caplog.text


def test_task_that_times_out_leaves_no_process(run_dag: Callable[..., Any], tmp_path: Path) -> None:
    run = run_dag("task_hops_hangs", {"folder": str(tmp_path)})
    assert run.state == "failed"
    pids = [int((tmp_path / name).read_text()) for name in ("step", "child")]
    assert [pid for pid in pids if psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie"] == []


def shipped(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The operator of a function that is called with these arguments in a DAG."""
    with DAG("d", schedule=None):
        return function(*args, **kwargs).operator


def run_shipped(run_step: Any, launcher: Any, operator: Any) -> Any:
    return run_step(operator.entry, params=operator.step_params({}), launcher=launcher, task_id=operator.task_id)


def test_annotations_are_not_evaluated(run_step: Any, warm_launcher: Any) -> None:
    @task.hops(task_id="renamed")
    def concat(first: str, *rest: Path, sep: json.JSONEncoder = "-", **named: DAG) -> str:  # type: ignore[assignment]
        """Has every kind of argument."""

        def inner(text: str) -> str:
            return text.upper()

        class Holder:
            name = inner("held")

        return str(sep).join([inner(first), *map(str, rest), *sorted(named), Holder.name])

    operator = shipped(concat, "a", 1, 2.5, sep="+", z=None, y=True)
    assert run_shipped(run_step, warm_launcher, operator) == "A+1+2.5+y+z+HELD"
    assert "@task" not in operator.step_params({})["source"]


def test_context_is_the_first_argument_on_request(run_step: Any, warm_launcher: Any) -> None:
    @task.hops
    def tell(context, number: int) -> list:  # type: ignore[no-untyped-def,type-arg]
        context.progress(0.5, "half")
        return [context.spec.step, number]

    assert run_shipped(run_step, warm_launcher, shipped(tell, 3)) == ["tell", 3]
    assert run_shipped(run_step, warm_launcher, shipped(tell, number=4)) == ["tell", 4]
    assert [line.progress for line in run_step.lines if line.progress is not None] == [0.5]
    with pytest.raises(TypeError, match="number"), DAG("d", schedule=None):
        tell()


def test_closure_variables_fail_dag_parsing() -> None:
    outer = 3

    @task.hops
    def module_name() -> int:
        return LIMIT

    @task.hops
    def closure() -> int:
        return outer

    @task.hops
    def in_a_comprehension(n: int) -> list:  # type: ignore[type-arg]
        return [json.dumps(i) for i in range(n)]

    for function, arguments, name in (
        (module_name, (), "LIMIT"),
        (closure, (), "outer"),
        (in_a_comprehension, (1,), "json"),
    ):
        with pytest.raises(ValueError, match=rf"uses '{name}', defined outside it") as caught:
            shipped(function, *arguments)
        assert "import or define it inside the function" in str(caught.value)


def test_argument_named_loop_needs_a_default() -> None:
    @task.hops
    def improve(loop: Any = None) -> None:
        pass

    with pytest.raises(ValueError, match="'loop', which Airflow cannot hand over to the step"):
        shipped(improve)
    assert shipped(improve, loop="{{ loop.index }}").op_kwargs == {"loop": "{{ loop.index }}"}


def test_lambdas_and_coroutines_are_refused() -> None:
    @task.hops
    async def later() -> None:
        pass

    for function, name in ((later, "later"), (task.hops(task_id="x")(lambda: 1), "<lambda>")):
        with pytest.raises(ValueError, match=f"{name} is not a plain function"):
            shipped(function)


def test_error_in_the_function_shows_its_line(run_step: Any, warm_launcher: Any) -> None:
    @task.hops
    def divide(by: int) -> float:
        numerator = 1
        return numerator / by

    with pytest.raises(StepFailed, match="ZeroDivisionError: division by zero"):
        run_shipped(run_step, warm_launcher, shipped(divide, 0))
    assert any("return numerator / by" in line.text for line in run_step.lines)


def test_missing_name_at_run_time_is_explained(run_step: Any, warm_launcher: Any) -> None:
    source = "def f():\n    return pd.DataFrame()\n"
    params = {"source": source, "function": "f"}
    with pytest.raises(StepFailed, match=r"f\(\) uses 'pd', which is defined outside it"):
        run_step("airflow_hops.ml.step.function:run", params=params, launcher=warm_launcher)
    with pytest.raises(StepFailed, match=r"the source of g\(\) does not define it"):
        run_step("airflow_hops.ml.step.function:run", params={**params, "function": "g"}, launcher=warm_launcher)


def test_decorator_is_registered_with_airflow() -> None:
    assert task.hops.keywords["decorated_operator_class"].__module__ == "airflow_hops.decorators.hops"
    assert "tensorflow" not in sys.modules
