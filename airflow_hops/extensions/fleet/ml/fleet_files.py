"""A fleet's artifact: the folder that is served, its index as JSON, and statistics of the segments' training rows."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.artifacts.properties import ModelProperties
from airflow_hops.core.artifacts.target import REGRESSION
from airflow_hops.core.errors import BadInput
from airflow_hops.core.store import ArtifactStore
from airflow_hops.extensions.fleet.core.packs import Entry, Fleet, FleetDescription, PackWriter, write_index
from airflow_hops.extensions.fleet.core.summary import SUMMARY_FILE, SegmentTable, statistics_file

FLEET = "fleet"
"""Registered name of the format, and the folder in the artifact."""

Model = tuple[bytes, str]
"""A model: its bytes, and their format."""
Segment = tuple[Entry, Model | None, str | None]
"""A segment: its row of the index, its model unless the pooled one answers it, and its statistics, a JSON object."""


@dataclass
class OpenFleet:
    """A fleet that was read from its artifact.

    Attributes:
        artifact: The artifact.
        folder: Folder with its files.
        fleet: Its index and models.
        properties: The artifact's properties.
    """

    artifact: Artifact
    folder: Path
    fleet: Fleet
    properties: ModelProperties

    @classmethod
    def read(cls, store: ArtifactStore, artifact: Artifact) -> OpenFleet:
        """Reads a fleet.

        Raises:
            BadInput: the artifact is not a fleet, or is damaged.
        """
        properties = ModelProperties.of(store.manifest(artifact.uri))
        if properties.folder != FLEET:
            raise BadInput(
                f"{artifact.uri} is a model of the format {properties.folder!r}; expected a fleet, the output of "
                "TrainFleetOperator"
            )
        folder = store.local(artifact)
        return cls(artifact, folder, Fleet(folder / FLEET), properties)

    @property
    def entries(self) -> Mapping[str, Entry]:
        """The index, by segment."""
        return self.fleet.entries

    @cached_property
    def statistics(self) -> Mapping[str, str]:
        """Groups and statistics of the segments that have them, a JSON object each."""
        # A file has a line for each segment, so that those of segments that stay need not be parsed.
        texts, key_of = {}, json.JSONDecoder().raw_decode
        for name in sorted({statistics_file(position) for position in range(len(self.entries))}):
            for line in (self.folder / name).read_text().splitlines():
                if line.startswith('"'):
                    key, end = key_of(line)
                    texts[key] = line[end + 1 :].removesuffix(",")
        return texts

    def segment(self, key: str) -> Segment:
        """Returns a segment, for :func:`write_fleet`."""
        place = self.fleet.place(key)
        model = None if place is None else (self.fleet.payload(place), place.format)
        return self.entries[key], model, self.statistics.get(key)


def write_fleet(
    folder: Path, description: FleetDescription, pooled: bytes, segments: Iterable[Segment], problem: str
) -> list[Entry]:
    """Writes the folder that is served, ``statistics/`` and ``summary.json``; returns the rows of the index.

    Args:
        folder: The artifact's folder.
        description: Content of ``fleet.json``, of whose ``pooled`` the format is taken.
        pooled: The pooled model.
        segments: The segments, sorted by key.
        problem: Kind of problem.
    """
    served = folder / FLEET
    (folder / "statistics").mkdir()
    entries, lines = [], dict[str, list[str]]()
    with PackWriter(served) as packs:
        place = packs.add(pooled, description.pooled.format)
        for position, (entry, model, statistics) in enumerate(segments):
            entries.append({**entry, "place": None if model is None else packs.add(*model)})
            own = lines.setdefault(statistics_file(position), [])
            if statistics is not None:
                own.append(f"{json.dumps(entry['segment'])}:{statistics}")
    rows = write_index(served, entries)
    replace(description, pooled=place).write(served)
    for name, own in lines.items():
        (folder / name).write_text("{\n" + ",\n".join(own) + "\n}\n")
    facts: dict[str, Any] = {name: [row[name] for row in rows] for name in ("segment", "state", "reason", "rows")}
    facts |= {name: [finite(row[name]) for row in rows] for name in ("loss", "pooled_loss")}
    facts["digest"] = [row["place"] and row["place"].sha256[:12] for row in rows]
    loss = "squared error" if problem == REGRESSION else "log loss"
    table = SegmentTable(description.segment, loss, **facts)
    (folder / SUMMARY_FILE).write_text(json.dumps(table.to_dict(), allow_nan=False, ensure_ascii=False))
    return rows


def finite(value: float | None) -> float | None:
    """Returns a number that JSON has; None instead of others."""
    return value if value is not None and math.isfinite(value) else None
