"""Publishes an artifact as a data set: its files for the daemon, a torrent file, and a preview."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from airflow_hops.core.errors import BadInput
from airflow_hops.core.owners import check_owner
from airflow_hops.core.store.owners import claim
from airflow_hops.core.times import now
from airflow_hops.extensions.sharing.core.entries import (
    KINDS,
    MOST_DOCUMENT_BYTES,
    MOST_FEATURES,
    DatasetEntry,
    Preview,
    check_path,
)
from airflow_hops.extensions.sharing.core.records import OWNED, SharingRecords
from airflow_hops.extensions.sharing.ml.transport import share_files
from airflow_hops.ml.readers import scan
from airflow_hops.ml.schema.infer import infer_schema
from airflow_hops.ml.schema_files import to_text
from airflow_hops.ml.statistics.generate import generate_statistics
from airflow_hops.ml.statistics.summary import summarize
from airflow_hops.ml.step.context import StepContext

_TOP = 5
_MOST_CHARACTERS = 200


def run(
    context: StepContext,
    *,
    uri: str,
    data: str,
    name: str,
    version: int,
    licence: str,
    description: str,
    card: str,
    sample_rows: int,
) -> dict[str, Any]:
    """Returns the entry of a data set, to be signed, after writing its documents and linking its files.

    Args:
        context: The step's context.
        uri: Address of the artifact, of one of :data:`~airflow_hops.extensions.sharing.core.entries.KINDS`.
        data: Folder of the daemon's files.
        name: Name of the data set.
        version: Version of the data set.
        licence: Licence, an SPDX identifier or a text.
        description: One paragraph.
        card: Longer description in Markdown.
        sample_rows: Number of rows of each table that the preview shows.

    Raises:
        BadInput: the artifact has another kind, or a file that cannot be shared, or the name belongs to another DAG.
    """
    store = context.store
    manifest = store.manifest(uri)
    if manifest.kind not in KINDS:
        raise BadInput(f"{uri}: its kind is {manifest.kind!r}; only {' and '.join(KINDS)} artifacts can be published")
    folder = store.local(manifest.reference(uri))
    try:
        paths = [check_path(file.path) for file in manifest.files]
    except ValueError as error:
        raise BadInput(f"{uri}: {error}") from None
    tables = sorted({path.partition("/")[0] for path in paths if path.endswith(".parquet") and "/" in path})
    if not tables:
        raise BadInput(f"{uri}: it has no folder of Parquet files")
    advice = f"choose another name, or add an owner by: airflow hops datasets owners {name} DAG ..."
    dag_id = manifest.producer.dag_id
    check_owner(claim(store, OWNED, name, dag_id), dag_id, f"data set {name!r}", f"{uri} is not published; {advice}")
    statistics, schemas, types, sample, features = {}, {}, {}, {}, {}
    for number, table in enumerate(tables):
        context.progress(number / len(tables), f"statistics of {table}")
        first = min((folder / table).glob("*.parquet"))
        schema = scan.schema(first)
        # TFDV 1.16: has no statistics of times and decimals.
        others = {
            field.name: str(field.type)
            for field in schema
            if pa.types.is_temporal(field.type) or pa.types.is_decimal(field.type)
        }
        computed = generate_statistics(str(folder / table), exclude=others)
        statistics[table] = summarize(computed)
        schemas[table] = to_text(infer_schema(computed))
        types[table] = {field.name: str(field.type) for field in schema}
        sample[table] = {"columns": schema.names, "rows": list(_rows(first, sample_rows))}
        for feature, summary in statistics[table]["features"].items():
            features[f"{table}.{feature}"] = _figures(summary, statistics[table]["rows"])
        features |= {f"{table}.{name}": {"type": type_} for name, type_ in others.items()}
    preview = Preview(
        files=[{"path": f.path, "size_bytes": f.size_bytes, "sha256": f.sha256} for f in manifest.files],
        types=types,
        schema=schemas,
        statistics=statistics,
        sample=sample,
        card=card,
        properties=manifest.properties,
    )
    document = json.dumps(preview.to_dict()).encode()
    if len(document) > MOST_DOCUMENT_BYTES:
        raise BadInput(f"{uri}: its preview has {len(document)} bytes, more than {MOST_DOCUMENT_BYTES}; share less")
    torrent, info_hash = share_files(folder, [(f.path, f.size_bytes) for f in manifest.files], Path(data))
    records = SharingRecords(store)
    return DatasetEntry(
        name=name,
        version=version,
        licence=licence,
        description=description,
        kind=manifest.kind,
        created_at=now(),
        rows=sum(each["rows"] for each in statistics.values()),
        size_bytes=sum(file.size_bytes for file in manifest.files),
        files=len(manifest.files),
        info_hash=info_hash,
        torrent=records.keep_document(torrent),
        preview=records.keep_document(document),
        features=dict(list(features.items())[:MOST_FEATURES]),
    ).to_dict()


def _rows(file: Path, most: int) -> Iterable[list[object]]:
    if most:
        for batch in scan.batches(file, rows=most):
            yield from ([_shown(value) for value in row.values()] for row in batch.to_pylist())
            return


def _shown(value: object) -> object:
    """Returns a value of a row in JSON; long texts are cut."""
    if isinstance(value, bytes):
        value = base64.b64encode(value[:_MOST_CHARACTERS]).decode()
    if isinstance(value, float) and value != value:
        return "NaN"
    if value is None or isinstance(value, bool | int | float):
        return value
    text = value if isinstance(value, str) else str(value)
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}…"


def _figures(summary: Mapping[str, Any], rows: int) -> dict[str, Any]:
    """Returns an entry's description of a feature."""
    figures = {"type": summary["type"], "missing": round(summary.get("missing", 0) / rows, 6) if rows else 0.0}
    figures |= {name: summary[name] for name in ("mean", "min", "max", "unique") if name in summary}
    if top := summary.get("top_values"):
        figures["top"] = [str(value)[:50] for value, _ in top[:_TOP]]
    return figures
