"""Waits for the sharing daemon, which may be on a machine with another clock; the contract of sources."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from airflow_hops.core.errors import HopsError
from airflow_hops.core.store import ArtifactStore, leases
from airflow_hops.core.store.leases import Watch
from airflow_hops.extensions.sharing.core.records import Daemon, SharingRecords
from airflow_hops.extensions.sharing.core.waiting import Wait, wait_here
from airflow_hops.testing.sources import SourceContract


class TestDataset(SourceContract):
    fields = {"uri": "dataset://north/flights@1#planes", "licences": ["CC0-1.0"], "schema": {"delay": "float64"}}


@pytest.fixture
def records(tmp_path: Path) -> SharingRecords:
    return SharingRecords(ArtifactStore(str(tmp_path)))


def beat(records: SharingRecords, *, time: float, refreshed: float = 0.0) -> None:
    lease = records.lease("them")
    lease.note = Daemon(time, "them", "host", "listen", "announced", refreshed).to_dict()
    lease.take()


@pytest.mark.parametrize("ahead_s", [-90, 90])
def test_refresh_ends_with_the_daemons_answer(records: SharingRecords, ahead_s: float) -> None:
    beat(records, time=time.time() + ahead_s, refreshed=records.ask_refresh())
    wait, watch = Wait("them/numbers@1", "refresh", records.ask_refresh()), Watch(records.daemon())
    assert not wait.is_over(records, watch)
    later = records.ask_refresh()  # by another task, before the daemon has looked
    beat(records, time=time.time() + ahead_s, refreshed=later)
    assert wait.is_over(records, watch)


def test_dead_daemon_is_reported(records: SharingRecords, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "BEAT_S", 0.01)
    beat(records, time=time.time() + 3600)
    with pytest.raises(HopsError, match="no sharing daemon reports to the store"):
        wait_here(records, Wait("them/numbers@1", "refresh", records.ask_refresh()))
