"""Prices of a connection, and costs of steps by ``airflow hops store costs``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_hops.core.contract.artifacts import BadInput, Producer
from airflow_hops.core.contract.prices import Prices, gpu_s_of
from airflow_hops.core.store import ArtifactStore
from airflow_hops.hooks.runtime import RuntimeHook

PRICES = {"currency": "EUR", "core_hour": 0.5, "gpu_hour": 2, "gib_month": 1024}


def write(store: ArtifactStore, dag_id: str, kind: str, cost: dict[str, float], size: int) -> None:
    producer = Producer(dag_id, "run", kind)
    with store.create(store.address(producer, kind), kind, producer) as writer:
        (writer.path / "inner").mkdir()
        (writer.path / "inner" / "manifest.json").write_text("x" * size)  # data, and no artifact
        writer.cost = lambda: cost
        writer.commit()


def test_costs_are_summed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hops: Callable[..., Any]) -> None:
    def costs(*arguments: str) -> Any:
        code, out, err = hops("store", "costs", "--output", "json", "--hops-conn-id", "priced", *arguments)
        assert code == 0, err
        return json.loads(out)

    store = ArtifactStore(str(tmp_path))
    write(store, "flights", "examples", {"core_s": 3600.0, "gpu_s": 0.0}, 1 << 20)
    write(store, "flights", "model", {"core_s": 1800.0, "gpu_s": 7200.0}, 1 << 20)
    write(store, "visits", "examples", {}, 1 << 19)
    connection: dict[str, Any] = {"conn_type": "hops", "extra": {"store": str(tmp_path)}}
    monkeypatch.setenv("AIRFLOW_CONN_PRICED", json.dumps(connection))
    flights, visits, total = costs()
    assert flights == {"dag": "flights", "artifacts": "2", "core hours": "1.500", "GPU hours": "2.000", "GiB": "0.002"}
    assert (visits["core hours"], total["artifacts"]) == ("0.000", "3")
    connection["extra"]["prices"] = PRICES
    monkeypatch.setenv("AIRFLOW_CONN_PRICED", json.dumps(connection))
    examples, model, total = costs("--by", "kind")
    assert (model["kind"], model["cost"], model["storage per month"]) == ("model", "EUR 4.25", "EUR 1.00")
    assert (examples["cost"], examples["storage per month"], total["cost"]) == ("EUR 0.5", "EUR 1.50", "EUR 4.75")
    assert costs("--dag-id", "visits", "--by", "task")[0]["task"] == "visits.examples"
    connection["extra"]["prices"] = {"currency": "EUR", "gpu_hour": {"NVIDIA H200": 4.0, "NVIDIA L4": 0.5}}
    monkeypatch.setenv("AIRFLOW_CONN_PRICED", json.dumps(connection))
    named = {gpu_s_of("NVIDIA H200"): 3600.0, gpu_s_of("NVIDIA L4"): 7200.0, gpu_s_of("NVIDIA A100"): 1800.0}
    write(store, "visits", "model", {"gpu_s": 14400.0, **named}, 0)  # half an hour's name is not known
    code, out, err = hops("store", "costs", "--output", "json", "--hops-conn-id", "priced")
    assert [row["cost"] for row in json.loads(out)] == ["EUR 8.00", "EUR 9.00", "EUR 17.00"]
    assert "3.000 GPU hours are of GPUs without a price of their name in gpu_hour" in err
    by_default = Prices("EUR", gpu_hour={"default": 1.0, "NVIDIA H200": 4.0})
    assert by_default.of_use({"gpu_s": 14400.0, **named}) == 4.0 + 3 * 1.0
    code, _, err = hops("store", "costs", "--hops-conn-id", "priced", "--days", "0")
    assert (code, "no artifact found" in err) == (1, True)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"currency": "euro"}, "currency is 'euro', expected a code such as 'EUR'"),
        ({"core_hour": -1}, "core_hour is -1, expected a number, 0 or more"),
        ({"gpu_hour": True}, "gpu_hour is True, expected a number, 0 or more"),
        ({"gpu_hour": {}}, "gpu_hour is {}, expected a number, 0 or more, or an object of them by names of GPUs"),
        ({"gpu_hour": {"NVIDIA L4": "1"}}, r"gpu_hour\['NVIDIA L4'\] is '1', expected a number, 0 or more"),
        ({"gpu_hours": 2}, "'gpu_hours' is no price; expected currency, core_hour, gpu_hour, gib_month"),
    ],
)
def test_unusable_prices_are_named(monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], words: str) -> None:
    extra = {"prices": PRICES | change}
    monkeypatch.setenv("AIRFLOW_CONN_PRICED", json.dumps({"conn_type": "hops", "extra": extra}))
    with pytest.raises(BadInput, match=f"connection 'priced': field 'prices': {words}"):
        _ = RuntimeHook("priced").settings


def test_amounts_are_written_with_their_currency() -> None:
    prices = Prices(**PRICES)
    assert [prices.text(amount) for amount in (0, 0.0012345, 0.5, 1204.5)] == [
        "EUR 0.00", "EUR 0.00123", "EUR 0.5", "EUR 1,204.50",
    ]  # fmt: skip
