"""Values that ranks share on the rendezvous server, when the network to it fails."""

from __future__ import annotations

import time

import pytest

from airflow_hops.core.contract.artifacts import HopsError
from airflow_hops.ml.training.gang import Channel, Placement
from airflow_hops.ml.training.gang.rendezvous import SharedValues, stall_variables


def test_unreachable_server_is_tried_again_before_it_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    address = {"HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1", "HOROVOD_GLOO_RENDEZVOUS_PORT": "1"}
    for name, value in {**address, **stall_variables(12.0)}.items():
        monkeypatch.setenv(name, value)
    values, began = SharedValues("values", Placement(0, 2, 0, 1, "north"), Channel()), time.monotonic()
    with pytest.raises(HopsError, match=r"^rank 0 of 2 on north has not reached .* at 127\.0\.0\.1:1 for 2 s: "):
        values.put("name", "value")
    assert time.monotonic() - began > 2
