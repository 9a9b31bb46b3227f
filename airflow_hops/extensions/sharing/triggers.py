"""Trigger that waits until the sharing daemon has fetched a preview or a data set."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from asgiref.sync import sync_to_async

from airflow_hops.airflow_internals.triggers import BaseTrigger, TriggerEvent
from airflow_hops.core.errors import HopsError
from airflow_hops.core.store.leases import Watch
from airflow_hops.extensions.sharing.core.records import SharingRecords
from airflow_hops.extensions.sharing.core.waiting import Wait
from airflow_hops.runner.runtime import RuntimeHook


class DatasetTrigger(BaseTrigger):
    """Fires when the daemon has met a task's condition, has failed, or stops reporting.

    It reads small records in the store. Another triggerer can take over, and then starts watching again.

    Args:
        ref: The data set.
        wants: ``refresh``, ``preview`` or ``data``.
        since: Time of the request, in seconds since 1970.
        conn_id: Connection of type ``hops``, which has the store.
        poll_s: Seconds between looks at the records.
    """

    def __init__(self, *, ref: str, wants: str, since: float, conn_id: str, poll_s: float = 2.0) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.ref, self.wants, self.since, self.conn_id, self.poll_s = ref, wants, since, conn_id, poll_s

    def serialize(self) -> tuple[str, dict[str, object]]:
        """Returns the path of this class, and its arguments."""
        names = ("ref", "wants", "since", "conn_id", "poll_s")
        return f"{type(self).__module__}.{type(self).__qualname__}", {name: getattr(self, name) for name in names}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yields one event with the wait that is over, and the error if there is one."""
        yield TriggerEvent(await self.wait())

    async def wait(self) -> dict[str, Any]:
        """Returns the event's value."""
        wait = Wait(self.ref, self.wants, self.since)
        error = None
        try:
            store = await sync_to_async(lambda: RuntimeHook(self.conn_id).store)()
            records = SharingRecords(store)
            watch = Watch(await asyncio.to_thread(records.daemon))
            while not await asyncio.to_thread(wait.is_over, records, watch):
                await asyncio.sleep(self.poll_s)
        except HopsError as failure:
            error = str(failure)
        return {"ref": self.ref, "wants": self.wants, "since": self.since, "error": error}
