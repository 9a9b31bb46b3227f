"""Hours and sizes of steps by ``airflow hops costs``."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from world import World

from airflow_hops.core.artifacts.artifact import Producer


def test_costs_are_summed(world: World, hops: Callable[..., Any]) -> None:
    def costs(*arguments: str) -> Any:
        code, out, err = hops("costs", "--output", "json", "--hops-conn-id", "metered", *arguments)
        assert code == 0, err
        return json.loads(out)

    for dag_id, kind, cost, size in (
        ("flights", "examples", {"core_s": 3600.0, "gpu_s": 0.0}, 1 << 20),
        ("flights", "model", {"core_s": 1800.0, "gpu_s": 7200.0}, 1 << 20),
        ("visits", "examples", {}, 1 << 19),
    ):
        files = {"inner/manifest.json": "x" * size}  # data, and no artifact
        world.artifact(kind, files, Producer(dag_id, "run", kind), cost=cost)
    world.connect("metered")
    flights, visits, total = costs()
    assert flights == {"dag": "flights", "artifacts": "2", "core hours": "1.500", "GPU hours": "2.000", "GiB": "0.002"}
    assert (visits["core hours"], total["artifacts"]) == ("0.000", "3")
    assert [row["GPU hours"] for row in costs("--by", "kind")] == ["0.000", "2.000", "2.000"]
    assert costs("--dag-id", "visits", "--by", "task")[0]["task"] == "visits.examples"
    code, _, err = hops("costs", "--hops-conn-id", "metered", "--days", "0")
    assert (code, "no artifact found" in err) == (1, True)
