"""Captured rows that were ingested, such as those of a Kafka topic, as the captured requests of a model."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.capture_layout import folder_name, name_time
from airflow_hops.core.errors import BadInput, ConnectionFieldError, MissingColumn
from airflow_hops.core.parquet_writer import write_parquet
from airflow_hops.ml.captured.requests import CapturedRequests
from airflow_hops.ml.readers import scan
from airflow_hops.ml.step.context import StepContext

_EXPECTED = ("request_id", "row", "model", "version", "captured_at")


def captured_requests(context: StepContext, model_name: str) -> CapturedRequests:
    """Returns the captured requests of the input ``captured``, a snapshot, or else those that the connection names.

    Raises:
        BadInput: the snapshot has none of the model, or the connection names none.
    """
    if context.has_input("captured"):
        snapshot = context.input("captured"), context.local("captured")
        return requests_of_snapshot(*snapshot, model_name, context.scratch)
    requests = CapturedRequests.of(context.spec.services, context.store, model_name)
    if requests is None:
        raise ConnectionFieldError("serving_capture_path").with_text(
            "the connection's field 'serving_capture_path' is empty; expected the folder given to the model server "
            "as --capture_base_path; if the server sends captured requests to a topic, ingest the topic, and give "
            "the output of IngestOperator as captured"
        )
    return requests


def requests_of_snapshot(snapshot: Artifact, folder: Path, model_name: str, scratch: Path) -> CapturedRequests:
    """Writes a model's rows of a snapshot as the model server writes them, and returns them.

    A topic holds the rows of all models and versions; its table has the columns of all, null where a model lacks them.
    Each file has the rows of one version, without the columns that are null in all of them. There is none of an empty
    window.

    Args:
        snapshot: The snapshot.
        folder: Its folder on this machine.
        model_name: The model.
        scratch: Folder for the files.

    Raises:
        BadInput: a table does not have captured rows of the model.
    """
    place = scratch / "snapshot" / folder_name(model_name)
    place.mkdir(parents=True)
    models = set[str]()
    for number, path in enumerate(sorted(folder.glob("*/*.parquet"))):
        table = scan.table([path])
        if not len(table):
            continue
        if lacking := [name for name in _EXPECTED if name not in table.column_names]:
            raise MissingColumn(snapshot.uri, lacking[0]).with_text(
                f"{snapshot.uri}, table {path.parent.name!r}: there is no column {lacking[0]!r}; expected captured "
                f"requests, as files of --capture_base_path have them; found {', '.join(table.column_names)}"
            )
        models.update(pc.unique(table["model"]).to_pylist())
        table = table.filter(pc.equal(table["model"], model_name))
        for version in pc.unique(table["version"]).to_pylist():
            rows = table.filter(pc.equal(table["version"], pa.scalar(version)))
            until = pc.max(rows["captured_at"]).as_py()
            filled = [name for name in rows.column_names if rows[name].null_count < len(rows)]
            write_parquet(rows.select(filled), place / f"{name_time(until)}-v{version}-{number:05}.parquet")
    if models and model_name not in models:
        listed = ", ".join(sorted(map(repr, models))) or "none"
        raise BadInput(f"{snapshot.uri} has no captured rows of model {model_name!r}; it has rows of {listed}")
    return CapturedRequests(str(place.parent), model_name)
