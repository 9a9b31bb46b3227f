"""Trigger of an asset watcher: fires when a Kafka topic has new records."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from asgiref.sync import sync_to_async

from airflow_hops.airflow_internals.triggers import BaseEventTrigger, TriggerEvent
from airflow_hops.core.errors import HopsError
from airflow_hops.extensions.streams.core.topic import Topic
from airflow_hops.extensions.streams.hooks import kafka_options_of

_STATE_KEY = "hops_topic_ends"


class TopicTrigger(BaseEventTrigger):
    """Fires once for each poll that finds records after those of the poll before.

    Nothing is consumed: the DAG's ingest decides which records it reads. The ends of the partitions are stored in the
    asset's state, so that records which arrive while no triggerer runs fire it afterwards. The first poll of all only
    notes the ends.

    Example::

        events = Asset("events", watchers=[AssetWatcher(name="kafka", trigger=TopicTrigger("events"))])

        with DAG("events_training", schedule=[events]): ...

    Args:
        topic: Name of the topic.
        conn_id: Connection of type ``kafka``.
        poll_s: Seconds between polls, and so the least between events.
    """

    def __init__(self, topic: str, conn_id: str = "kafka_default", poll_s: float = 60.0) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.topic, self.conn_id, self.poll_s = topic, conn_id, poll_s

    def serialize(self) -> tuple[str, dict[str, object]]:
        """Returns the path of this class, and its arguments."""
        names = ("topic", "conn_id", "poll_s")
        return f"{type(self).__module__}.{type(self).__qualname__}", {name: getattr(self, name) for name in names}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Polls for ever: ``{"topic": …, "records": N, "offsets": {"0": [first, end]}}`` for new records.

        A topic that shrank or was created again fires with the records that it has since.
        """
        key, state = f"{_STATE_KEY}.{self.topic}", self.asset_state_store
        offsets: Any = None
        try:
            offsets = await _ask(state, "get", key) if state else None
        except ValueError:  # several assets are watched by equal triggers, which Airflow runs as one
            self.log.warning(
                "Several assets share this trigger; it has no state, and misses records until it runs again"
            )
            state = None
        while True:
            try:
                ends = await sync_to_async(self._ends, thread_sensitive=False)()
            except HopsError as error:  # brokers that are down may come back, and a connection be corrected
                self.log.warning("%s; trying again in %.0f s", error, self.poll_s)
                ends = None
            if ends is not None:
                new = {} if offsets is None else _new_offsets(offsets, ends)
                if new:
                    records = sum(end - start for start, end in new.values())
                    yield TriggerEvent({"topic": self.topic, "records": records, "offsets": new})
                if ends != offsets and state:
                    await _ask(state, "set", key, {**ends})
                offsets = ends
            await asyncio.sleep(self.poll_s)

    def _ends(self) -> dict[str, int]:
        with Topic(f"kafka://{self.topic}", kafka_options_of(self.conn_id)) as topic:
            return {str(partition): topic.bounds(partition)[1] for partition in topic.partitions()}


async def _ask(state: object, method: str, *arguments: object) -> Any:
    """Reads or writes an asset's state; the store of Airflow 3.3.0 has no asynchronous methods."""
    ask = getattr(state, f"a{method}", None) or sync_to_async(getattr(state, method), thread_sensitive=False)
    return await ask(*arguments)


def _new_offsets(offsets: dict[str, int], ends: dict[str, int]) -> dict[str, list[int]]:
    starts = {partition: offsets.get(partition, 0) for partition in ends}
    # A smaller end offset belongs to a new topic with this name.
    starts = {partition: start if start <= ends[partition] else 0 for partition, start in starts.items()}
    return {partition: [starts[partition], end] for partition, end in ends.items() if end > starts[partition]}
