"""Shares of versions among requests that name none, and config and log at run time; ``test_access.py`` has who may."""

from __future__ import annotations

import json
import random
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom
from server_process import ServerProcess, Start, versions, write_models
from waiting import wait_for

from airflow_hops.core.serving_api.answers import ModelServerError, TrafficSplit
from airflow_hops.core.serving_api.client import ModelServerClient
from airflow_hops.core.serving_api.config import parse_config, read_config
from airflow_hops.serving.models.traffic import TrafficTable, deal_slots

ROW = {"instances": [{"carrier": "AA", "distance": [0.0], "hour": 0}]}


def answering_version(server: ServerProcess, path: str = "flights", sticky_key: str | None = None) -> int:
    headers = {"X-Sticky-Key": sticky_key} if sticky_key else None
    return int(server.predict(path, ROW, headers=headers)["predictions"][0]["score"][0] / 1000)


def check_shares(answered: Counter[int], percents: dict[int, float]) -> None:
    """Requests without a key are drawn independently: each version's number is within the binomial's bounds."""
    assert set(answered) <= {version for version, percent in percents.items() if percent}
    for version, percent in percents.items():
        low, high = binom.interval(1 - 1e-7, answered.total(), percent / 100)
        assert low <= answered[version] <= high, (answered, percents)


def check_answers(server: ServerProcess, percents: dict[int, float]) -> None:
    check_shares(Counter(answering_version(server) for _ in range(100)), percents)


def shares(server: ServerProcess) -> dict[str, float]:
    counted = server.call("/v1/stats")[1]["models"]["flights"]["versions"]
    return {version: result["traffic_percent"] for version, result in counted.items()}


def wait_for_shares(server: ServerProcess, wanted: dict[str, float]) -> None:
    wait_for(lambda: shares(server) == wanted, lambda: f"{shares(server)} is not {wanted}")


@pytest.fixture
def traffic_file(tmp_path: Path) -> Path:
    return tmp_path / "traffic.json"


@pytest.fixture
def server(start_server: Start, saved_models: Path, traffic_file: Path, tmp_path: Path) -> ServerProcess:
    """All three versions of flights, with 90 to 10 between the first two."""
    config = write_models(tmp_path, flights=(saved_models / "flights", versions(1, 2)))
    traffic_file.write_text(json.dumps({"models": {"flights": {"1": 90, "2": 10}}}))
    return start_server(
        model_config_file=config,
        model_config_file_poll_wait_seconds=0.1,
        traffic_config_file=traffic_file,
        traffic_config_file_poll_wait_seconds=0.1,
    )


def test_shares_are_met_and_keys_are_sticky(server: ServerProcess) -> None:
    check_answers(server, {1: 90, 2: 10})
    same_id = [server.predict("flights", ROW, headers={"x-request-id": "r"}) for _ in range(100)]
    check_shares(Counter(int(answer["predictions"][0]["score"][0] / 1000) for answer in same_id), {1: 90, 2: 10})
    first, again = ([answering_version(server, sticky_key=f"k{n}") for n in range(100)] for _ in range(2))
    assert first == again
    assert 2 <= Counter(first)[2] <= 25
    inputs = {"carrier": ["AA"], "distance": [[0.0]], "hour": [0]}
    with ModelServerClient(server.address) as client:
        over_grpc = [client.predict("flights", inputs, sticky_key=f"k{n}").version for n in range(40)]
    assert over_grpc == first[:40]
    assert {answering_version(server, "flights/versions/2") for _ in range(20)} == {2}


def test_changed_split_is_applied_and_a_wrong_one_is_not(server: ServerProcess, traffic_file: Path) -> None:
    assert shares(server) == {"1": 90.0, "2": 10.0}
    traffic_file.write_text(json.dumps({"models": {"flights": {"1": 0, "2": 100}}}))
    wait_for_shares(server, {"1": 0.0, "2": 100.0})
    assert {answering_version(server) for _ in range(20)} == {2}
    traffic_file.write_text(json.dumps({"models": {"flights": {"1": 50, "2": 49}}}))
    problem = f"{traffic_file}: models.flights has percents {{1: 50, 2: 49}} that sum to 99; expected 100"
    wait_for(lambda: problem in server.log(), server.log)
    assert shares(server) == {"1": 0.0, "2": 100.0}
    traffic_file.unlink()
    wait_for_shares(server, {"1": 0.0, "2": 100.0})


def test_share_of_a_version_that_is_not_loaded_goes_to_the_others(server: ServerProcess, traffic_file: Path) -> None:
    traffic_file.write_text(json.dumps({"models": {"flights": {"1": 30, "2": 10, "9": 60}}}))
    wait_for_shares(server, {"1": 75.0, "2": 25.0})
    check_answers(server, {1: 75, 2: 25})
    assert "versions (9,) have traffic but are not loaded" in server.log()


def _splits(versions: list[int]) -> st.SearchStrategy[dict[int, int]]:
    """Splits among some of the versions; the percentages add up to 100."""
    ends = st.lists(st.integers(0, 100), min_size=len(versions) - 1, max_size=len(versions) - 1).map(sorted)
    return ends.map(lambda cut: dict(zip(versions, np.diff([0, *cut, 100]).tolist(), strict=True)))


@settings(deadline=None)
@given(st.lists(_splits([1, 2, 3, 4]), min_size=1, max_size=6))
def test_keys_move_only_from_shares_that_shrink_to_shares_that_grow(steps: list[dict[int, int]]) -> None:
    dealt: list[Any] = []
    for step in steps:
        dealt.append(deal_slots(step, dealt[-1] if dealt else None))
    assert [Counter(slots) for slots in dealt] == [Counter(step) for step in steps]
    for (old, new), (old_versions, new_versions) in zip(pairwise(steps), pairwise(dealt), strict=True):
        moved = {(giver, taker) for giver, taker in zip(old_versions, new_versions, strict=True) if giver != taker}
        assert all(new[giver] < old[giver] and new[taker] > old[taker] for giver, taker in moved)


@settings(deadline=None)
@given(st.lists(_splits([1, 2]), max_size=6))
def test_traffic_split_is_unchanged_by_a_restart(steps: list[dict[int, int]]) -> None:
    slots = None
    for step in steps:
        slots = deal_slots(step, slots)
        assert slots == deal_slots(step)


@settings(deadline=None)
@given(_splits([1, 2, 3, 4]), st.sets(st.integers(1, 4)), st.integers(1, 40))
def test_clients_that_take_turns_get_every_version_by_its_share(
    percents: dict[int, int], loaded: set[int], clients: int
) -> None:
    table = TrafficTable(None)
    table.set_split("m", percents)
    split, total = table.split("m", dict.fromkeys(loaded)), sum(percents[version] for version in loaded)
    assert (split is None) == (total == 0)
    if split is None:
        return
    chosen = [table.choose("m", split, None) for _ in range(600)]
    shares = {version: 100 * percents[version] / total for version in loaded}
    for numbers in (chosen, chosen[::clients], chosen[1::clients]):
        check_shares(Counter(numbers), shares)


def test_workers_that_were_forked_draw_other_versions() -> None:
    def draws() -> list[int]:
        with ProcessPoolExecutor(1, get_context("fork"), initializer=random.seed, initargs=(0,)) as worker:
            return worker.submit(_draws_of_worker).result()

    assert draws() != draws(), "even if a model's code sets seeds"


_TABLE = TrafficTable(None)
_TABLE.set_split("m", {1: 50, 2: 50})


def _draws_of_worker() -> list[int]:
    split = _TABLE.split("m", {1: None, 2: None})
    assert split is not None
    return [_TABLE.choose("m", split, None) for _ in range(100)]


TRAFFIC = "/v1/models/flights:traffic"


@pytest.fixture
def files(tmp_path: Path, saved_models: Path) -> dict[str, object]:
    """Flags of a server of flights, versions 1 and 2, and of the files that control it."""
    config = write_models(tmp_path, flights=(saved_models / "flights", versions(1, 2)))
    return {
        "model_config_file": config,
        "traffic_config_file": tmp_path / "traffic.json",
        "log_file": tmp_path / "logs" / "server.log",
    }


def test_traffic_set_by_rest_and_grpc_survives_restart(
    start_server: Start, files: dict[str, object], tmp_path: Path
) -> None:
    server = start_server(**files)
    latest = {"model": "flights", "percents": None, "in_effect": {"1": 0.0, "2": 100.0}, "persisted": True}
    assert server.call(TRAFFIC) == (200, latest)
    body = {"percents": {"1": 90, "2": 10}}
    split = {**latest, **body, "in_effect": {"1": 90.0, "2": 10.0}}
    assert server.call(TRAFFIC, body) == (200, split)
    check_answers(server, {1: 90, 2: 10})
    assert json.loads((tmp_path / "traffic.json").read_text()) == {"models": {"flights": {"1": 90, "2": 10}}}

    for wrong, code, message in (
        ({"percents": {"1": 90, "3": 10}}, 404, "Could not find version 3 of model flights"),
        ({"percents": {"1": 90, "2": 20}}, 400, "that sum to 110; expected 100"),
        ({"percents": [100]}, 400, "percents is of type list"),
        ({"percent": {"1": 100}}, 400, "is not of its form"),
        (b"{", 400, "JSON Parse error"),
    ):
        status, error = server.error(TRAFFIC, wrong)
        assert (status, message in error) == (code, True), (wrong, error)
    unknown = server.error("/v1/models/trains:traffic", body)
    assert unknown == (404, "Could not find any versions of model trains")

    with ModelServerClient(server.address) as client:
        after = client.set_traffic("flights", {1: 25, 2: 75})
        assert after == client.traffic("flights") == TrafficSplit({1: 25, 2: 75}, {1: 25, 2: 75}, persisted=True)
        with pytest.raises(ModelServerError, match="Could not find version 9 of model flights"):
            client.set_traffic("flights", {9: 100})
    server.process.kill()
    server.process.wait()

    again = start_server(**files)
    assert again.call(TRAFFIC)[1]["in_effect"] == {"1": 25.0, "2": 75.0}
    check_answers(again, {1: 25, 2: 75})
    assert again.call(TRAFFIC, {"percents": None})[1]["in_effect"] == {"1": 0.0, "2": 100.0}
    check_answers(again, {2: 100})


def test_current_config_is_shown_and_replaced_by_authorized_users(
    start_server: Start, files: dict[str, object], saved_models: Path, tmp_path: Path
) -> None:
    server = start_server(**{**files, "traffic_config_file": None})
    status, shown = server.call("/v1/config")
    assert (status, shown["source"]) == (200, str(tmp_path / "models.config"))
    assert parse_config(shown["text"], "shown") == read_config(tmp_path / "models.config")
    model = shown["config"]["model_config_list"]["config"][0]
    assert model["model_version_policy"] == {"specific": {"versions": ["1", "2"]}}

    (tmp_path / "other").mkdir()
    config = read_config(write_models(tmp_path / "other", flights=(saved_models / "flights", versions(2, 3))))
    with ModelServerClient(server.address, timeout_s=60) as client:
        client.reload_config(config)
        server.wait_for_versions("flights", {3: "AVAILABLE", 2: "AVAILABLE", 1: "END"})
        with pytest.raises(ModelServerError, match="version 1 of model flights, which is not currently available"):
            client.set_traffic("flights", {1: 10, 2: 90})
        # Without a traffic file the split is in memory alone, and the answer says so.
        assert client.set_traffic("flights", {1: 0, 2: 90, 3: 10}).persisted is False
    check_answers(server, {2: 90, 3: 10})
    after = server.call("/v1/config")[1]
    assert after["source"] == "HandleReloadConfigRequest"
    assert after["applied_at"] > shown["applied_at"]
    assert parse_config(after["text"], "shown") == config
    assert "model flights version 3 loaded" in (tmp_path / "logs" / "server.log").read_text()
