"""Steps that lead to a fetched data set; a task or command takes one, waits for the daemon, and asks for the next."""

# The order of waits for a data set; each request is a file in the store, which the daemon answers by its transfer's
# state:
#   refresh  no known catalogue has the data set; the daemon reads the catalogues again
#   preview  its preview is not in the store yet
#   data     the entry and preview were accepted, and the files are not in the store yet
# A wait ends when its file has appeared, or when the transfer has failed and repeats the request's time: an older
# failure does not count. After each wait :func:`next_wait` looks at the store again, so a killed task, or another
# triggerer, continues with the wait that is needed then. The daemon counts as dead when its record has not changed for
# ``DEAD_BEATS`` beats by the clock of the waiting process.

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from airflow_hops.core.errors import BadInput, HopsError
from airflow_hops.core.store.leases import Watch
from airflow_hops.extensions.sharing.core.entries import Dataset, DatasetRef, Preview
from airflow_hops.extensions.sharing.core.records import DATA, PREVIEW, Daemon, SharingRecords

Accept = Callable[[Dataset, Preview], None]


@dataclass(frozen=True)
class Wait:
    """A wait for a ``refresh`` of the catalogues, a ``preview`` or ``data``, from a time in seconds since 1970 on."""

    ref: str
    wants: str
    since: float

    def is_over(self, records: SharingRecords, watch: Watch[Daemon | None]) -> bool:
        """Returns whether the daemon has done it, or failed.

        Args:
            records: The records.
            watch: Watch of the daemon's beats, which began with the wait.

        Raises:
            HopsError: the daemon is dead.
        """
        watch.see(records.daemon())
        if watch.is_dead:
            raise HopsError(
                f"data set {self.ref}: no sharing daemon reports to the store {records.store.root}; start "
                "'airflow hops datasets serve'"
            )
        if self.wants == "refresh":
            return records.is_refreshed(self.since)
        dataset = records.find(DatasetRef.parse(self.ref))
        if dataset is None:
            return True
        if self.wants == PREVIEW and records.document(dataset.entry.preview) is not None:
            return True
        if records.fetched(dataset.ref) is not None:
            return True
        transfer = records.transfer(dataset)
        return transfer is not None and transfer.state == "failed" and records.is_answered(transfer, self.since)


def next_wait(
    records: SharingRecords, ref: DatasetRef, last: Wait | None, *, accept: Accept | None = None, wants: str = DATA
) -> Wait | Dataset:
    """Returns the data set if it is in the store; otherwise requests it, and returns the next condition to wait for.

    It has no state but the records and the last wait, so another process can continue.

    Args:
        records: The records.
        ref: The data set.
        last: The last wait, which is over; None at the beginning.
        accept: Called with entry and preview before the data is asked for; raises BadInput to reject them.
        wants: ``data``, or only ``preview``.

    Raises:
        BadInput: no catalogue has the data set, it is rejected, or its bounds are not kept.
        HopsError: the transfer failed.
    """
    dataset = records.find(ref)
    if dataset is None:
        if last is None or last.wants != "refresh":
            return Wait(str(ref), "refresh", records.ask_refresh())
        known = [str(each.ref) for each in records.datasets()]
        raise BadInput(
            f"data set {str(ref)!r}: no catalogue of a trusted organisation has it; they have "
            f"{', '.join(known[:20]) or 'nothing'}. the page Shared data shows when they were read"
        )
    preview = records.preview(dataset)
    if preview is None:
        wants = PREVIEW
    elif wants == PREVIEW:
        return dataset
    elif accept is not None:
        accept(dataset, preview)
    if (there := records.fetched(dataset.ref)) is not None:
        if there.entry.info_hash != dataset.entry.info_hash:
            raise BadInput(
                f"data set {dataset.ref}: the store has another one of this version, which its publisher replaced; "
                f"remove it with 'airflow hops datasets remove {dataset.ref}', or ask for another version"
            )
        if preview is not None:
            records.request(dataset, DATA)  # it is in use
            return dataset
    if last is not None and last.wants == wants:
        transfer = records.transfer(dataset)
        if transfer is not None and transfer.error and records.is_answered(transfer, last.since):
            raise (HopsError if transfer.retryable else BadInput)(f"data set {dataset.ref}: {transfer.error}")
    return Wait(str(dataset.ref), wants, records.request(dataset, wants))


def wait_here(records: SharingRecords, wait: Wait, say: Callable[[Any], None] = lambda transfer: None) -> None:
    """Waits in this process, and calls ``say`` with the transfer's state every second."""
    watch = Watch(records.daemon())
    while not wait.is_over(records, watch):
        time.sleep(1.0)
        dataset = records.find(DatasetRef.parse(wait.ref))
        if dataset is not None and (transfer := records.transfer(dataset)) is not None:
            say(transfer)
