"""Makes a model that is deployed already the canary, and begins its rollout, by the steps of the operators.

Run in the environment of a site: ``begin_rollout.py <URI of its deployment> <percent>``. The rollout waits for more
requests than anybody makes.
"""

from __future__ import annotations

import sys
import uuid
from collections.abc import Mapping
from typing import Any

from airflow_hops.core.artifacts.artifact import Artifact, Producer
from airflow_hops.core.steps.protocol import Output, StepSpec
from airflow_hops.runner.runtime import RuntimeHook

PLAN = {
    "bake_time_s": 0.0,
    "min_requests": 10**9,
    "timeout_s": 3600.0,
    "on_timeout": "leave",
    "approval": False,
    "keep_versions": 2,
    "longest_wait_s": 1.0,
}


def main(deployed: str, percent: int) -> None:
    """Runs both steps."""
    hook, run_id = RuntimeHook(), f"test__{uuid.uuid4().hex}"
    store = hook.store
    made = store.manifest(deployed)
    dag_id = made.producer.dag_id

    def step(entry: str, kind: str, params: Mapping[str, Any], **inputs: Artifact) -> Any:
        producer = Producer(dag_id, run_id, kind)
        spec = StepSpec(
            step=kind,
            entry=entry,
            params=params,
            inputs={role: (artifact,) for role, artifact in inputs.items()},
            output=Output(store.address(producer, kind), kind),
            producer=producer,
        )
        return hook.run(spec, cache=False)

    (model,) = made.inputs["model"]
    name = made.properties["model_name"]
    params = {"model_name": name, "canary_percent": percent, "allow_older": True}
    step("airflow_hops.ml.deploy.stage:run", "deployment", params, model=model)
    uri = store.address(Producer(dag_id, run_id, "deployment"), "deployment")
    deployment = store.manifest(uri).reference(uri)
    plan = {**PLAN, "steps": [percent, 100]}
    step("airflow_hops.ml.rollout:poll", "rollout", {"plan": plan, "limits": {}}, deployment=deployment)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
