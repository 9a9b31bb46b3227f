"""DAGs that new records of a topic start: one asset has a trigger of its own, two share another."""

from __future__ import annotations

from airflow.sdk import DAG, Asset, AssetWatcher, task

from airflow_hops.extensions.streams.triggers import TopicTrigger


@task
def see(triggering_asset_events: dict | None = None) -> list:
    return [event.extra["payload"] for events in triggering_asset_events.values() for event in events]  # type: ignore[union-attr]


for name, poll_s in {"alone": 1.0, "shared_1": 1.5, "shared_2": 1.5}.items():
    watcher = AssetWatcher(name="kafka", trigger=TopicTrigger("events", "kafka_watched", poll_s))
    with DAG(f"watched_{name}", schedule=[Asset(f"topic_{name}", watchers=[watcher])], is_paused_upon_creation=False):
        see()
