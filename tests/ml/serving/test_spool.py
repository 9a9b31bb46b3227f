"""Spool of captured requests: what was written before a torn byte is recovered, and each row is in one file."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_hops.core.serving_api import tensors
from airflow_hops.core.serving_api.protocol import PredictRequest
from airflow_hops.serving.capture import writer
from airflow_hops.serving.capture.files import LocalCaptureFiles
from airflow_hops.serving.capture.options import CaptureOptions
from airflow_hops.serving.capture.record import CapturedCall, pack
from airflow_hops.serving.capture.spool import (
    OPTIONS_FILE,
    Spool,
    SpoolPosition,
    WriterState,
    read_fields,
    read_spool,
    segment_path,
    segments,
)
from airflow_hops.serving.request_kind import RequestKind

RECORDS = st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=12)


@contextmanager
def _spool(records: list[bytes], segment_bytes: int, batch: int) -> Iterator[Path]:
    """Writes records, some at a time, to a spool whose server has ended."""
    with tempfile.TemporaryDirectory() as folder:
        spool = Spool(Path(folder), 2**20, segment_bytes)
        for first in range(0, len(records), batch):
            some = records[first : first + batch]
            assert spool.append(some) == len(some)
        spool.close()
        yield Path(folder)


def _read(folder: Path, start: SpoolPosition = SpoolPosition()) -> tuple[list[bytes], int]:  # noqa: B008
    damages: list[None] = []
    records = [r for r, _ in read_spool(folder, start, ended=True, on_damage=lambda: damages.append(None))]
    return records, len(damages)


@pytest.mark.slow
@settings(deadline=None)
@given(RECORDS, st.integers(1, 200), st.integers(1, 5), st.booleans(), st.data())
def test_records_before_a_damaged_byte_are_recovered(
    records: list[bytes], segment_bytes: int, batch: int, truncated: bool, data: st.DataObject
) -> None:
    """Only the rest of the damaged segment is lost: a kill cuts it, and a power cut may leave other bytes."""
    with _spool(records, segment_bytes, batch) as folder:
        ends = [after for _, after in read_spool(folder, SpoolPosition())]
        assert _read(folder) == (records, 0)
        start = data.draw(st.integers(0, len(ends) - 1))
        assert _read(folder, ends[start])[0] == records[start + 1 :]
        number = data.draw(st.sampled_from(segments(folder)))
        content = segment_path(folder, number).read_bytes()
        cut = data.draw(st.integers(0, len(content) - 1))
        rest = b"" if truncated else bytes([content[cut] ^ 0x55]) + content[cut + 1 :]
        segment_path(folder, number).write_bytes(content[:cut] + rest)
        recovered, damaged = _read(folder)
        is_whole = (after.segment != number or after.offset <= cut for after in ends)
        assert recovered == [record for record, whole in zip(records, is_whole, strict=True) if whole]
        assert damaged == (not truncated or SpoolPosition(number, cut) not in {SpoolPosition(number), *ends})


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(0, 10**6), min_size=2, max_size=5), st.integers(0, 250))
def test_state_of_the_writer_survives_a_torn_save(offsets: list[int], cut: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        WriterState.create(folder)
        state = WriterState()
        for offset in offsets:
            saved, state.position = (folder / "state").read_bytes(), SpoolPosition(1, offset)
            state.save(folder)
        assert WriterState.load(folder) == state
        slot = state.saves % 2 * 2**16
        after = (folder / "state").read_bytes()
        torn = after[: slot + cut] + saved[slot + cut :]
        (folder / "state").write_bytes(torn)
        loaded = WriterState.load(folder)
        assert loaded == state if torn == after else loaded.position.offset in offsets[-2:-1]


class Killed(BaseException):
    """Ends a writer as a kill does: it catches no such error."""


STEPS = st.lists(
    st.tuples(st.integers(0, 4), st.lists(st.sampled_from([None, None, None, OSError, Killed]), max_size=10)),
    max_size=8,
)
"""Requests that are captured, and what fails of the writer's step that follows."""


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(STEPS)
def test_each_row_is_in_one_file_whatever_fails(steps: list[tuple[int, list[type[BaseException] | None]]]) -> None:
    """A save of the state, or of a file, fails or ends the writer, before or after it has taken effect."""
    coming: Iterator[type[BaseException] | None] = iter(())

    def at_risk(function: Any) -> Any:
        def call(*arguments: Any) -> Any:
            if error := next(coming, None):
                raise error
            result = function(*arguments)
            if error := next(coming, None):
                raise error
            return result

        return call

    request, sent = PredictRequest(), 0
    tensors.fill_proto(request.inputs["x"], np.ones(1, np.float32))
    with tempfile.TemporaryDirectory() as base, pytest.MonkeyPatch.context() as patch:
        folder = Path(base) / ".spool" / "one"
        folder.mkdir(parents=True)
        (folder / OPTIONS_FILE).write_text(json.dumps({"base_path": base, "mode": "inputs"}))
        WriterState.create(folder)
        spool, own = Spool(folder, 2**20, 300), writer.take(folder)
        patch.setattr(WriterState, "save", at_risk(WriterState.save))
        patch.setattr(LocalCaptureFiles, "publish", at_risk(LocalCaptureFiles.publish))
        for requests, faults in [*steps, (1, []), (0, [])]:
            for _ in range(requests):
                kind = RequestKind(f"m{sent % 2}", 1, "Predict", "GRPC")
                call = CapturedCall(kind, f"r{sent}", sent, 1.0, 1, request.SerializeToString(), b"")
                assert spool.append([pack(call)]) == 1
                sent += 1
            coming = iter(faults)
            assert own is not None
            try:
                own.step(everything=True, now=True)
            except Killed:
                own.leave()
                own = writer.take(folder)
        assert own is not None and own.empty
        own.leave()
        spool.close()
        tables = [pq.read_table(file, use_threads=False) for file in Path(base).glob("m*/*.parquet")]
    assert Counter(name for table in tables for name in table["request_id"].to_pylist()) == Counter(
        f"r{number}" for number in range(sent)
    )


def test_spool_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    values = {"base_path": "/captured", "retention_days": 2.0}
    assert read_fields(CaptureOptions, values) == CaptureOptions("/captured")
    (tmp_path / OPTIONS_FILE).write_text(json.dumps({"base_path": "", "sink": "kafka://captured"}))
    with pytest.raises(ValueError, match="'base_path' is empty"):
        writer.take(tmp_path)
