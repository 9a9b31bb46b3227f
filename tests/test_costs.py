"""Prices of a connection, and costs of steps by ``airflow hops store costs``."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from airflow_hops.cli.definition import _STORE_COMMANDS
from airflow_hops.core.contract.artifacts import BadInput, Producer
from airflow_hops.core.contract.prices import Prices
from airflow_hops.core.store import ArtifactStore
from airflow_hops.hooks.runtime import RuntimeHook

PRICES = {"currency": "EUR", "core_hour": 0.5, "gpu_hour": 2, "gib_month": 1024}


def costs(*arguments: str) -> None:
    parser = argparse.ArgumentParser()
    (command,) = [command for command in _STORE_COMMANDS if command.name == "costs"]
    for argument in command.args:
        argument.add_to_parser(parser)
    command.func(parser.parse_args(["--output", "json", "--hops-conn-id", "priced", *arguments]))


def write(store: ArtifactStore, dag_id: str, kind: str, cost: dict[str, float], size: int) -> None:
    producer = Producer(dag_id, "run", kind)
    with store.create(store.address(producer, kind), kind, producer) as writer:
        (writer.path / "inner").mkdir()
        (writer.path / "inner" / "manifest.json").write_text("x" * size)  # data, and no artifact
        writer.cost = lambda: cost
        writer.commit()


def test_costs_are_summed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    store = ArtifactStore(str(tmp_path))
    write(store, "flights", "examples", {"core_s": 3600.0, "gpu_s": 0.0}, 1 << 20)
    write(store, "flights", "model", {"core_s": 1800.0, "gpu_s": 7200.0}, 1 << 20)
    write(store, "visits", "examples", {}, 1 << 19)
    connection: dict[str, Any] = {"conn_type": "hops", "extra": {"store": str(tmp_path)}}
    monkeypatch.setenv("AIRFLOW_CONN_PRICED", json.dumps(connection))
    costs()
    flights, visits, total = json.loads(capsys.readouterr().out)
    assert flights == {"dag": "flights", "artifacts": "2", "core hours": "1.500", "GPU hours": "2.000", "GiB": "0.002"}
    assert (visits["core hours"], total["artifacts"]) == ("0.000", "3")
    connection["extra"]["prices"] = PRICES
    monkeypatch.setenv("AIRFLOW_CONN_PRICED", json.dumps(connection))
    costs("--by", "kind")
    examples, model, total = json.loads(capsys.readouterr().out)
    assert (model["kind"], model["cost"], model["storage per month"]) == ("model", "EUR 4.25", "EUR 1.00")
    assert (examples["cost"], examples["storage per month"], total["cost"]) == ("EUR 0.5", "EUR 1.50", "EUR 4.75")
    costs("--dag-id", "visits", "--by", "task")
    assert json.loads(capsys.readouterr().out)[0]["task"] == "visits.examples"
    with pytest.raises(SystemExit, match="no artifact found"):
        costs("--days", "0")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"currency": "euro"}, "currency is 'euro', expected a code such as 'EUR'"),
        ({"core_hour": -1}, "core_hour is -1, expected a number, 0 or more"),
        ({"gpu_hour": True}, "gpu_hour is True, expected a number, 0 or more"),
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
