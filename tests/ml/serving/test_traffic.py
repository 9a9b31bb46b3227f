"""Shares of versions among requests that name none."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from server_process import ServerProcess, Start, versions, write_models
from waiting import wait_for

from airflow_hops.core.serving_api.client import ModelServerClient
from airflow_hops.serving.models.traffic import TrafficTable, deal_slots

EXCESS_REQUESTS = 2.5
"""Maximum difference between the requests that a version gets and its share of them, if all versions are loaded."""
ROW = {"instances": [{"carrier": "AA", "distance": [0.0], "hour": 0}]}


def answering_version(server: ServerProcess, path: str = "flights", sticky_key: str | None = None) -> int:
    headers = {"X-Sticky-Key": sticky_key} if sticky_key else None
    return int(server.predict(path, ROW, headers=headers)["predictions"][0]["score"][0] / 1000)


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


def test_shares_are_exact_and_keys_are_sticky(server: ServerProcess) -> None:
    assert Counter(answering_version(server) for _ in range(100)) == {1: 90, 2: 10}
    same_id = [server.predict("flights", ROW, headers={"x-request-id": "r"}) for _ in range(100)]
    assert Counter(int(answer["predictions"][0]["score"][0] / 1000) for answer in same_id) == {1: 90, 2: 10}
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
    assert Counter(answering_version(server) for _ in range(100)) == {1: 75, 2: 25}
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
@given(_splits([1, 2, 3, 4]), st.sets(st.integers(1, 4)), st.integers(0, 250), st.integers(1, 250))
def test_versions_get_their_shares_of_any_number_of_requests(
    percents: dict[int, int], loaded: set[int], earlier: int, requests: int
) -> None:
    table = TrafficTable(None)
    table.set_split("m", percents)
    split, total = table.split("m", dict.fromkeys(loaded)), sum(percents[version] for version in loaded)
    assert (split is None) == (total == 0)
    if split is None:
        return
    chosen = [table.choose("m", split, None) for _ in range(earlier + requests)]
    # Shares of the loaded versions are rounded to one in a hundred.
    excess = EXCESS_REQUESTS + (total < 100) * requests / 100
    for version, percent in percents.items():
        share = percent / total if version in loaded else 0
        assert abs(chosen[earlier:].count(version) - share * requests) <= excess * (share > 0)
    assert total < 100 or Counter(chosen[earlier : earlier + 100]) <= Counter(percents), "a hundred are exact"
