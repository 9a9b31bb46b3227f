"""Values that ranks share on the rendezvous server, when the network to it fails, and links that fail."""

from __future__ import annotations

import os

import pytest

from airflow_hops.core.contract.artifacts import HopsError
from airflow_hops.ml.training.gang import Channel, Placement
from airflow_hops.ml.training.gang.links import broken_exchange, describe_links, unanswered
from airflow_hops.ml.training.gang.rendezvous import SharedValues, patience_s, stall_variables


def test_unreachable_server_is_tried_again_before_it_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    address = {"HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1", "HOROVOD_GLOO_RENDEZVOUS_PORT": "1"}
    for name, value in {**address, **stall_variables(10.5)}.items():
        monkeypatch.setenv(name, value)
    assert patience_s(os.environ) == 25.5
    values = SharedValues("values", Placement(0, 2, 0, 1, "north"), Channel())
    with pytest.raises(HopsError, match=r"^rank 0 of 2 on north has not reached .* at 127\.0\.0\.1:1 for [1-9]\d* s: "):
        values.put("name", "value")


def test_broken_links_are_described_once() -> None:
    line = "[/horovod/third_party/gloo/transport/tcp/pair.cc:598] Connection closed by peer [10.0.0.3]:4012. Advice"
    assert broken_exchange(line) == ("Connection closed by peer", "10.0.0.3")
    assert broken_exchange("[/gloo/transport/tcp/pair.cc:6] Timed out") == ("Timed out", "")
    assert broken_exchange("the user's own mistake") is None
    links = {("south", "north"): " broke", ("north", "south"): " broke", ("west", "north"): ""}
    assert describe_links(links) == "between north and south broke and between north and west"
    assert describe_links({(f"{n:02}", "z"): "" for n in range(10)}).endswith("between 07 and z and 2 more links")
    assert unanswered(os.getpid()) == []
