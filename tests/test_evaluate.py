"""The evaluate operator."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from airflow_hops.contract.artifacts import Artifact
from airflow_hops.contract.model_record import ModelRecord, ServedVersion
from airflow_hops.operators.evaluate import EvaluateOperator
from airflow_hops.store.model_records import write_record


def test_another_champion_is_another_cache_key(store: Any) -> None:
    operator = EvaluateOperator(task_id="evaluate", model={}, examples={}, model_name="flights")
    hook: Any = SimpleNamespace(store=store)
    assert operator.step_cache_key_parts(hook) == {"champion": "none"}
    model = Artifact("file:///m", "model", "abc")
    write_record(store, "flights", ModelRecord(champion=ServedVersion.of(model, 1, "", 100)))
    assert operator.step_cache_key_parts(hook) == {"champion": "abc"}
