"""Leases: who holds one, who counts as dead, whatever the clocks of the machines say."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from test_store import s3_store  # noqa: F401
from waiting import wait_for

from airflow_hops.core.processes.files import LockHeld
from airflow_hops.core.store import ArtifactStore
from airflow_hops.core.store.leases import DEAD_BEATS, Lease, LeaseLost, LeaseRecord, exclusive

BEAT_S = 0.1
LeaseOf = Callable[..., Lease]


@pytest.fixture
def lease_of(tmp_path: Path) -> LeaseOf:
    store = ArtifactStore(str(tmp_path))
    return lambda name, beat_s=BEAT_S: Lease(store, store.uri("lease"), name, beat_s=beat_s)


@pytest.mark.parametrize("behind_s", [-90, 90, 1e9])
def test_lease_ignores_the_holders_clock(lease_of: LeaseOf, behind_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, holder = time.time, lease_of("one")
    with ExitStack() as stack:
        with monkeypatch.context() as other_machine:
            other_machine.setattr(time, "time", lambda: clock() - behind_s)
            stack.enter_context(holder.held())
        with pytest.raises(LockHeld, match=r"one holds .*/1"):
            lease_of("two").take(1.5 * DEAD_BEATS * BEAT_S)
        holder.check()


def test_lease_of_a_dead_holder_is_taken(lease_of: LeaseOf) -> None:
    dead, other = lease_of("one"), lease_of("two")
    assert dead.try_take() and not other.try_take()
    wait_for(other.try_take, "the lease of the dead")
    with pytest.raises(LeaseLost):  # it was only suspended
        dead.beat()
    dead.release()
    other.check()
    assert not lease_of("three").try_take()


def test_released_lease_is_free_at_once(lease_of: LeaseOf) -> None:
    first, second = lease_of("one"), lease_of("two")
    assert first.try_take() and not second.try_take()
    first.release()
    assert second.try_take()
    assert not first.try_take() and first.other == LeaseRecord("two")


@pytest.mark.parametrize("is_dead", [False, True])
def test_take_over_waits_for_the_holders_end(lease_of: LeaseOf, is_dead: bool) -> None:
    holder, other = (lease_of(name, 0.05 if is_dead else 0.5) for name in ("one", "two"))
    assert holder.try_take()
    with ThreadPoolExecutor() as threads:
        taken = threads.submit(other.take_over)
        wait_for(lambda: other.read() == LeaseRecord("two"), "the request")
        with pytest.raises(LeaseLost):
            holder.beat()
        if not is_dead:
            assert not taken.done()
            holder.note = "result"
            holder.release()
        taken.result()
    assert (record := other.read(first=True)) is not None
    assert (record.is_released, record.note) == ((False, None) if is_dead else (True, "result"))
    other.remove_first()
    assert other.read(first=True) is None and other.read() == LeaseRecord("two")
    lease_of("three").take_over()
    with pytest.raises(LeaseLost):
        holder.beat()


def test_holder_with_the_same_name_is_replaced(lease_of: LeaseOf) -> None:
    first, retry = lease_of("run"), lease_of("run")
    assert first.try_take() and not lease_of("another").try_take() and retry.try_take()
    with pytest.raises(LeaseLost):
        first.beat()
    first.release()
    assert retry.read() == LeaseRecord("run")


@pytest.mark.slow
def test_lock_in_an_object_store_is_exclusive(s3_store: ArtifactStore) -> None:  # noqa: F811
    folder = s3_store.internal("_serving", "flights.lock")
    inside, most = [], []

    def work(number: int) -> None:
        with exclusive(s3_store, folder, "flights", 60):
            inside.append(number)
            most.append(len(inside))
            inside.remove(number)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(12)))
    assert most == [1] * 12
    with pytest.raises(LeaseLost, match="flights: another task has taken"), exclusive(s3_store, folder, "flights", 60):
        s3_store.write_text(f"{folder}/99", '{"holder": "another"}')
