"""The evaluate operator."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from world import World

from airflow_hops.core.artifacts.artifact import Artifact, Producer
from airflow_hops.core.steps.protocol import StepSpec
from airflow_hops.operators.evaluate import EvaluateOperator
from airflow_hops.runner.user_code.fingerprints import user_code


def test_custom_metric_changes_the_step(tmp_path: Path) -> None:
    operator = EvaluateOperator(
        task_id="evaluate", model={}, examples={}, model_name="flights", metrics={"cost": ("costs:cost", "lower")}
    )

    def fingerprint(code: str) -> str:
        (tmp_path / "costs.py").write_text(code)
        params: Any = json.loads(json.dumps(operator.step_params({})))
        assert params["metrics"] == {"cost": ["costs:cost", "lower"]} and params["minimum"] is None
        producer = Producer("tests", "run", "evaluate")
        spec = StepSpec("evaluate", operator.entry, params, {}, None, producer=producer, code_paths=(str(tmp_path),))
        return user_code(spec).fingerprint

    assert fingerprint("def cost(*_): return 1") != fingerprint("def cost(*_): return 2")


def test_champion_changes_the_cache_key(world: World) -> None:
    operator = EvaluateOperator(task_id="evaluate", model={}, examples={}, model_name="flights")
    hook: Any = SimpleNamespace(store=world.store)
    assert operator.step_cache_key_parts(hook) == {"champion": "none"}
    world.deployed("flights", Artifact("file:///m", "model", "abc"))
    assert operator.step_cache_key_parts(hook) == {"champion": "abc"}
