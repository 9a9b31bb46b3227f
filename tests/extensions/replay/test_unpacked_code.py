"""Recorded code of any names is unpacked as it is, within its folder, or refused."""

from __future__ import annotations

import tempfile
import uuid
from pathlib import Path

from hypothesis import example, given
from hypothesis import strategies as st

from airflow_hops.core.errors import BadInput
from airflow_hops.core.steps.run_record import TRAIN_ENTRY, RunRecord, UserCode, read_record, write_record
from airflow_hops.core.store import ArtifactStore
from airflow_hops.extensions.replay.runner.recorded_steps import unpack_code


@given(
    st.lists(
        st.lists(st.sampled_from(["a", "b", "..", ".", "", "é" * 128, "x\\y", "a.py"]), min_size=1, max_size=3).map(
            "/".join
        ),
        unique=True,
        max_size=4,
    )
)
@example(["a", "a/b"])
@example(["a/", "a/b"])
@example(["/a"])
def test_code_of_any_names_is_unpacked_or_refused(names: list[str]) -> None:
    store, record = (
        ArtifactStore(f"memory://{uuid.uuid4().hex}"),
        RunRecord("d", "train", TRAIN_ENTRY, {}, {}, {}, "1", "3.11", {}, "2026-01-01T00:00:00Z"),
    )
    code = UserCode("f", {name: name.encode() for name in names})
    write_record(store, "0" * 64, record, code)
    record = read_record(store, "d", "0" * 64)
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder, "target")
        try:
            unpack_code(store, record, target)
        except BadInput:
            assert any("" in (parts := name.split("/")) or {".", ".."} & {*parts} or "é" in name or "\\" in name
                       or any(other.startswith(f"{name}/") for other in names) for name in names)  # fmt: skip
        else:
            unpacked = {
                str(path.relative_to(target)): path.read_bytes() for path in target.rglob("*") if path.is_file()
            }
            assert unpacked == code.files
