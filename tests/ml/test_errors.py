"""Named errors: the places that raise them, their attributes, and their way to another process."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_hops.core.artifacts.artifact import Producer, RowCounts
from airflow_hops.core.errors import (
    ArtifactNotFound,
    BadInput,
    ConnectionFieldError,
    DamagedArtifact,
    HopsError,
    InvalidArgument,
    MissingColumn,
    ModelNotFound,
    QuotaExceeded,
    RowsNotConserved,
    SchemaMismatch,
    ServerUnreachable,
    StepFailed,
    UnreadableFile,
    details_of,
    error_from,
    kind_of,
    step_error,
)
from airflow_hops.core.json_files import parse_json
from airflow_hops.core.models.model_record import deployed_model
from airflow_hops.core.names import check_known
from airflow_hops.core.serving_api.answers import error_of
from airflow_hops.core.serving_api.tls_files import tls_files
from airflow_hops.core.store import ArtifactStore
from airflow_hops.ml.readers import scan
from airflow_hops.ml.statistics.formats.feature_types import check_type


def _raise(error: Exception) -> None:
    raise error


def _read_damaged(store: ArtifactStore, folder: Path) -> None:
    writer = store.create(f"{store.root}/damaged", "text", Producer())
    with writer:
        (writer.path / "a.txt").write_text("a")
        writer.commit()
    (folder / "store/damaged/a.txt").write_text("b")
    store.verify(store.manifest(f"{store.root}/damaged").reference(f"{store.root}/damaged"))


def _missing_column(folder: Path) -> None:
    pq.write_table(pa.table({"a": [1]}), folder / "a.parquet")
    scan.table([folder / "a.parquet"], ["b"])


PLACES: dict[type[HopsError], tuple[Callable[[ArtifactStore, Path], Any], dict[str, Any]]] = {
    InvalidArgument: (lambda *_: check_known("engine", "dask", ["local"]), {"argument": "engine", "value": "dask"}),
    ArtifactNotFound: (lambda store, _: store.manifest(f"{store.root}/a"), {"uri": "{root}/a"}),
    DamagedArtifact: (_read_damaged, {"uri": "{root}/damaged", "retryable": False}),
    UnreadableFile: (lambda *_: parse_json(b"{", "a.json"), {"path": "a.json"}),
    MissingColumn: (lambda _, folder: _missing_column(folder), {"column": "b", "where": "{folder}/a.parquet"}),
    SchemaMismatch: (
        lambda *_: check_type("a", pa.month_day_nano_interval(), "a.csv"),
        {"column": "a", "where": "a.csv", "actual": "month_day_nano_interval"},
    ),
    RowsNotConserved: (lambda *_: RowCounts(10, 6, {"bad": 3}).check("t"), {"rows_in": 10, "rows_out": 9}),
    ModelNotFound: (lambda store, _: deployed_model(store, "m", 3), {"model": "m", "version": 3}),
    ConnectionFieldError: (
        lambda *_: tls_files({"serving_ca_file": "/none"}),
        {"field": "serving_ca_file", "conn_id": None},
    ),
    QuotaExceeded: (
        lambda *_: _raise(QuotaExceeded("max_ranks", 2, "4 ranks")),
        {"quota": "max_ranks", "limit": 2},
    ),
    ServerUnreachable: (
        lambda *_: _raise(error_of("host:1", grpc.StatusCode.UNAVAILABLE, "down")),
        {"address": "host:1", "cause": "unreachable"},
    ),
}


@pytest.mark.parametrize("kind", PLACES, ids=lambda kind: kind.__name__)
def test_error_keeps_class_and_attributes_in_another_process(
    kind: type[HopsError], store: ArtifactStore, tmp_path: Path
) -> None:
    place, attributes = PLACES[kind]
    with pytest.raises(kind) as caught:
        place(store, tmp_path)
    error = caught.value
    sent = error_from(kind_of(error), str(error), retryable=error.retryable, details=details_of(error))
    for copy in (error, pickle.loads(pickle.dumps(error)), error.with_text(str(error)), sent):
        assert isinstance(copy, kind) and str(copy) == str(error) and copy.retryable is error.retryable
        for name, value in attributes.items():
            expected = value.format(root=store.root, folder=tmp_path) if isinstance(value, str) else value
            assert getattr(copy, name) == expected


def test_error_of_unknown_class_is_bad_input_if_not_retried() -> None:
    assert [kind_of(error) for error in (ValueError(), UnicodeError())] == ["", ""]
    for kind, retryable, expected in (
        ("", True, HopsError),
        ("Unknown", False, BadInput),
        ("kind_of", False, BadInput),
    ):
        assert type(error_from(kind, "a", retryable=retryable, details={})) is expected


def test_sent_attributes_have_no_secrets() -> None:
    details = details_of(InvalidArgument("uri", "s3://user:hunter2@host/a", ""))
    assert details == {"argument": "uri", "value": "s3://***@host/a"}
    assert details_of(InvalidArgument("ticks", [1], ""))["value"] == "[1]"


def test_step_error_is_that_behind_an_exception() -> None:
    missing = MissingColumn("a.csv", "b")
    failed = StepFailed("step 'a': it failed", step="a", retryable=False, error=missing)
    killed = StepFailed("step 'a' was killed", step="a", retryable=True)
    for raised, expected in ((failed, missing), (killed, killed), (missing, missing), (ValueError(), None)):
        outer = RuntimeError()
        outer.__cause__ = raised
        assert step_error(outer) is expected
