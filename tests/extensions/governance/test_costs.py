"""Hours and sizes of steps by ``airflow hops costs``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_hops.core.artifacts.artifact import Producer
from airflow_hops.core.store import ArtifactStore


def write(store: ArtifactStore, dag_id: str, kind: str, cost: dict[str, float], size: int) -> None:
    producer = Producer(dag_id, "run", kind)
    with store.create(store.address(producer, kind), kind, producer) as writer:
        (writer.path / "inner").mkdir()
        (writer.path / "inner" / "manifest.json").write_text("x" * size)  # data, and no artifact
        writer.cost = lambda: cost
        writer.commit()


def test_costs_are_summed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hops: Callable[..., Any]) -> None:
    def costs(*arguments: str) -> Any:
        code, out, err = hops("costs", "--output", "json", "--hops-conn-id", "metered", *arguments)
        assert code == 0, err
        return json.loads(out)

    store = ArtifactStore(str(tmp_path))
    write(store, "flights", "examples", {"core_s": 3600.0, "gpu_s": 0.0}, 1 << 20)
    write(store, "flights", "model", {"core_s": 1800.0, "gpu_s": 7200.0}, 1 << 20)
    write(store, "visits", "examples", {}, 1 << 19)
    connection: dict[str, Any] = {"conn_type": "hops", "extra": {"store": str(tmp_path)}}
    monkeypatch.setenv("AIRFLOW_CONN_METERED", json.dumps(connection))
    flights, visits, total = costs()
    assert flights == {"dag": "flights", "artifacts": "2", "core hours": "1.500", "GPU hours": "2.000", "GiB": "0.002"}
    assert (visits["core hours"], total["artifacts"]) == ("0.000", "3")
    assert [row["GPU hours"] for row in costs("--by", "kind")] == ["0.000", "2.000", "2.000"]
    assert costs("--dag-id", "visits", "--by", "task")[0]["task"] == "visits.examples"
    code, _, err = hops("costs", "--hops-conn-id", "metered", "--days", "0")
    assert (code, "no artifact found" in err) == (1, True)
