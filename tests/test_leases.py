"""Leases: who holds one, who counts as dead, whatever the clocks of the machines say."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from waiting import wait_for

from airflow_hops.core.store import ArtifactStore, leases
from airflow_hops.core.store.leases import Lease, Watch


@pytest.fixture
def lease_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Lease]:
    monkeypatch.setattr(leases, "BEAT_S", 0.05)
    store = ArtifactStore(str(tmp_path))
    return lambda name: Lease(store, store.uri("lease"), name)


@pytest.mark.parametrize("behind_s", [-90, 90, 1e9])
def test_lease_ignores_the_holders_clock(
    lease_of: Callable[[str], Lease], behind_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = time.time
    with monkeypatch.context() as other_machine:
        other_machine.setattr(time, "time", lambda: clock() - behind_s)
        holder = lease_of("one")
        assert holder.try_take()
    with holder.beating():
        other = lease_of("two")
        watched_until = time.monotonic() + 1.5 * leases.DEAD_BEATS * leases.BEAT_S
        while time.monotonic() < watched_until:
            assert not other.try_take()
            time.sleep(leases.BEAT_S)
        assert other.other == "one" and other.other_lives
    assert not holder.is_lost


def test_lease_of_a_dead_holder_is_taken(lease_of: Callable[[str], Lease]) -> None:
    dead, other = lease_of("one"), lease_of("two")
    assert dead.try_take() and not other.try_take()
    wait_for(other.try_take, "the lease of the dead")
    assert dead.is_lost and not other.is_lost
    with dead.beating():  # it was only suspended
        time.sleep(3 * leases.BEAT_S)
    dead.release()
    assert not other.is_lost and not lease_of("three").try_take()


def test_released_lease_is_free_at_once(lease_of: Callable[[str], Lease]) -> None:
    first, second = lease_of("one"), lease_of("two")
    assert first.try_take() and not second.try_take()
    first.release()
    assert second.try_take()
    assert not first.try_take() and first.other == "two"


def test_holder_with_the_same_name_is_replaced(lease_of: Callable[[str], Lease]) -> None:
    first, retry = lease_of("run"), lease_of("run")
    assert first.try_take() and not retry.try_take(from_holder="another")
    assert retry.try_take(from_holder="run")
    assert first.is_lost


def test_expiry_counts_from_the_last_change() -> None:
    watch = Watch("a")
    watch.see("a")
    assert not watch.has_changed
    time.sleep(0.01)
    before_s = watch.silent_s
    watch.see("b")
    assert watch.has_changed and watch.silent_s < before_s and not watch.is_dead
