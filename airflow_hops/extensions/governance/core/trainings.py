"""Records of trainings that nothing needs, for the garbage collection of a store.

A record is needed while its DAG run is retained or its model is. A search and its trials stay together.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from airflow_hops.core.artifacts.artifact import name_in
from airflow_hops.core.training.record import TrainingRecord, read_training
from airflow_hops.extensions.governance.core.rule import Removal, StoreListing, in_threads

_RECORD = re.compile(r"_trainings/([^/]+)/([0-9a-f]{32})\.json")


@dataclass(frozen=True)
class StoredTraining:
    """A record, the folder of its DAG in the store, and the DAG's id."""

    folder: str
    dag_id: str
    record: TrainingRecord

    @property
    def ended(self) -> datetime:
        """The end of the training, or the start of its last try."""
        record = self.record
        at_ms = record.end_time or max([record.start_time, *(each.start_time for each in record.tries)])
        return datetime.fromtimestamp(at_ms / 1000, UTC)


@dataclass(frozen=True, kw_only=True)
class TrainingRemoval(Removal):
    """The record of a training with its curves, which are removed first, so that no file is left behind."""

    training: StoredTraining

    @property
    def files(self) -> list[str]:
        """Addresses of the files, in the order of their removal."""
        return [f"{self.uri.removesuffix('.json')}.curves.json", self.uri]


def read_trainings(listing: StoreListing) -> list[StoredTraining]:
    """Returns all records of trainings. Raises BadInput if a file is not a record."""

    def read(path: str) -> StoredTraining | None:
        _, folder, name = path.split("/")
        record = read_training(listing.store, name_in(folder), name.removesuffix(".json"))
        if record is None:
            return None  # removed since it was listed
        return StoredTraining(folder, record.tags.get("hops.dag_id", name_in(folder)), record)

    trainings = in_threads(read, filter(_RECORD.fullmatch, listing.sizes))
    return [training for training in trainings.values() if training is not None]


def unneeded_trainings(
    listing: StoreListing, trainings: list[StoredTraining], is_needed: Callable[[StoredTraining], bool], reason: str
) -> Iterator[TrainingRemoval]:
    """Yields the records that nothing needs.

    Args:
        listing: The store.
        trainings: All records.
        is_needed: Returns whether the DAG run of a training, or its model, is retained.
        reason: Reason for a removal.
    """
    groups: Mapping[tuple[str, str], list[StoredTraining]] = defaultdict(list)
    for each in trainings:
        groups[each.folder, each.record.parent or each.record.run_id].append(each)
    for group in groups.values():
        if any(map(is_needed, group)):
            continue
        for each in group:
            path = f"_trainings/{each.folder}/{each.record.run_id}"
            yield TrainingRemoval(
                uri=f"{listing.store.root}/{path}.json",
                kind="training record",
                created_at=each.ended,
                size_bytes=sum(listing.sizes.get(f"{path}{end}", 0) for end in (".json", ".curves.json")),
                reason=reason,
                training=each,
            )
