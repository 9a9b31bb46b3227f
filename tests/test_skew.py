"""DAGs of the skew stage: retrain where data has drifted, not where the pipeline is broken."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import flights_examples
import pytest
from captured_flights import CaptureFolder, write_champion
from world import World, states

from airflow_hops.core.monitor_reports import listed_reports

pytestmark = pytest.mark.runtime


@pytest.fixture(scope="module")
def spans(shared_run_step: Any, warm_launcher: Any, flights_raw: Path) -> dict[str, Any]:
    """Statistics of spans: March, July, and March with its temperatures in degrees Celsius."""

    def statistics(name: str, month: int, *, celsius: bool = False) -> Any:
        window = [f"2013-{month:02}-01T00:00:00+00:00", f"2013-{month + 1:02}-01T00:00:00+00:00"]
        rows = flights_examples.months(flights_raw, month, month).iloc[::4]
        if celsius:
            rows = rows.assign(temp=(rows["temp"] - 32) / 1.8)
        examples = flights_examples.write_examples(
            shared_run_step.store, {"train": rows, "eval": rows.iloc[:2000]}, run_id=name, window=window
        )
        return shared_run_step(
            "airflow_hops.ml.statistics.stage:run", inputs={"examples": examples}, kind="statistics",
            launcher=warm_launcher, task_id=f"statistics-{name}",
        )  # fmt: skip

    return {
        "march": statistics("march", 3),
        "july": statistics("july", 7),
        "celsius": statistics("celsius", 3, celsius=True),
    }


def test_drift_dag_requests_retraining_except_for_pipeline_faults(
    run_dag: Any, shared_run_step: Any, spans: dict[str, Any], world: World, capfd: pytest.CaptureFixture[str]
) -> None:
    world.connect(store=shared_run_step.store.root)
    fault = "the verdict is 'pipeline_fault': temp (unit_change); correct the source of the model"
    # Before any request, so that no cooldown can be what keeps it from asking.
    for current, state, words in (("celsius", "skipped", fault), ("july", "success", ""), ("march", "skipped", "")):
        conf = {"reference": spans["march"].to_dict(), "current": spans[current].to_dict()}
        assert states(run_dag("drift_between_spans", conf)) == {"drift": "success", "request": state}
        assert words in "".join(capfd.readouterr())


def test_monitoring_dag_requests_retraining_once(
    run_dag: Any,
    shared_run_step: Any,
    flights_statistics: Any,
    flights_schema: Any,
    flights_raw: Path,
    tmp_path: Path,
    world: World,
    capfd: pytest.CaptureFixture[str],
) -> None:
    captured = CaptureFolder(tmp_path / "captured")
    write_champion(shared_run_step.store, flights_statistics, flights_schema)
    world.connect(store=shared_run_step.store.root, serving_capture_path=str(captured.path))

    def monitor(model_name: str = "flights") -> tuple[str, str]:
        run = states(run_dag("monitoring", {"model_name": model_name}))
        return run["skew"], run["request"]

    assert monitor("trains") == ("skipped", "skipped")  # a DAG deploys it, and has not yet
    capfd.readouterr()
    assert monitor("flihgts") == ("failed", "upstream_failed")
    assert "no DAG has a DeployModelOperator with this name; did you mean 'flights'?" in capfd.readouterr().out
    for month, request in ((7, "success"), (8, "skipped")):  # the cooldown
        captured.add(flights_examples.months(flights_raw, month, month).iloc[:1000])
        assert monitor() == ("success", request)
    listed = listed_reports(shared_run_step.store, "flights", 3, "skew")
    assert [dag_id for dag_id, _ in listed] == ["monitoring"] * 2
