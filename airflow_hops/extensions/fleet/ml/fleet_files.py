"""A fleet's artifact: the folder that is served, the history of its segments, and statistics of their training rows."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.artifacts.properties import ModelProperties
from airflow_hops.core.artifacts.target import REGRESSION
from airflow_hops.core.errors import BadInput
from airflow_hops.core.parquet_writer import write_parquet
from airflow_hops.core.store import ArtifactStore
from airflow_hops.extensions.fleet.core.options import REFERENCE_FILE
from airflow_hops.extensions.fleet.core.packs import (
    INDEX_SCHEMA,
    POOLED,
    Fleet,
    FleetDescription,
    PackWriter,
    Place,
    read_index,
    summary_of,
    write_index,
)
from airflow_hops.extensions.fleet.core.summary import SUMMARY_FILE
from airflow_hops.ml.readers import scan

FLEET = "fleet"
"""Registered name of the format, and the folder in the artifact."""

HISTORY = [
    pa.field("eval_rows", pa.int64()),
    pa.field("eval_loss", pa.float64()),
    pa.field("eval_pooled_loss", pa.float64()),
    pa.field("failed", pa.bool_()),
    # Run that trained the entry.
    pa.field("trained_by", pa.string()),
    # Fingerprint of an entry that was rolled back: a training on the same rows leaves this one as it is.
    pa.field("refused", pa.string()),
]
"""Further columns of the index."""

_PLACE = ("pack", "offset", "length", "format", "sha256")
_REFERENCE = pa.schema(
    [pa.field("segment", pa.string()), pa.field("groups", pa.string()), pa.field("statistics", pa.string())]
)


@dataclass
class OpenFleet:
    """A fleet that was read from its artifact.

    Attributes:
        artifact: The artifact.
        folder: Folder with its files.
        fleet: Its index and models.
        entries: Rows of the index by key.
        reference: Groups and statistics by key, as JSON.
        properties: The artifact's properties.
    """

    artifact: Artifact
    folder: Path
    fleet: Fleet
    entries: Mapping[str, Mapping[str, Any]]
    reference: Mapping[str, Mapping[str, Any]]
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
        fleet = Fleet.open(folder / FLEET)
        entries = {entry["segment"]: entry for entry in fleet.index.to_pylist()}
        reference = {row["segment"]: row for row in scan.table([folder / REFERENCE_FILE]).to_pylist()}
        return cls(artifact, folder, fleet, entries, reference, properties)

    def payload(self, entry: Mapping[str, Any]) -> bytes | None:
        """Returns the model of an entry; None if the pooled one answers it."""
        if entry["state"] == POOLED:
            return None
        return self.fleet.payload(Place(**{name: entry[name] for name in _PLACE}))


def write_fleet(
    folder: Path,
    description: FleetDescription,
    pooled: bytes,
    entries: Iterable[tuple[Mapping[str, Any], bytes | None]],
    reference: Iterable[Mapping[str, Any]],
    problem: str,
    model_format: str,
) -> list[dict[str, Any]]:
    """Writes the folder that is served, ``reference.parquet`` and ``summary.json``; returns the rows of the index.

    Args:
        folder: The artifact's folder.
        description: Content of ``fleet.json``, whose ``pooled`` is replaced.
        pooled: The pooled model.
        entries: Rows of the index, sorted by key, with their models.
        reference: Rows of the reference.
        problem: Kind of problem.
        model_format: Format of models that are not of an earlier fleet.
    """
    served = folder / FLEET
    served.mkdir(exist_ok=True)
    rows = []
    with PackWriter(served) as packs:
        place = packs.add(pooled, description.pooled.format)
        for entry, payload in entries:
            place_of = {} if payload is None else packs.add(payload, entry.get("format") or model_format).to_dict()
            rows.append(
                {**dict.fromkeys(_PLACE), **{name: entry[name] for name in entry if name not in _PLACE}, **place_of}
            )
    names = {field.name for field in (*INDEX_SCHEMA, *HISTORY)}
    rows = [{name: value for name, value in row.items() if name in names} for row in rows]
    write_index(served, rows, HISTORY)
    FleetDescription(description.segment, description.segment_type, description.encoding, place).write(served)
    ordered = sorted(reference, key=lambda row: row["segment"].encode())
    table = pa.Table.from_pylist([{name: row[name] for name in _REFERENCE.names} for row in ordered], _REFERENCE)
    write_parquet(table, folder / REFERENCE_FILE)
    loss = "squared error" if problem == REGRESSION else "log loss"
    summary = summary_of(read_index(served), description.segment, loss)
    (folder / SUMMARY_FILE).write_text(json.dumps(summary.to_dict(), allow_nan=False, ensure_ascii=False))
    return rows
