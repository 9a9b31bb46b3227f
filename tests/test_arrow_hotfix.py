"""A Parquet file that brings a program along: what an operator says of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_hops.core.contract.profiles import BASE, profile_of
from airflow_hops.core.contract.sources import Source
from airflow_hops.hooks.runtime import StepFailed
from tests.ml.crafted_files import write_crafted

pytestmark = pytest.mark.runtime
REFUSED = "a column is of the type 'arrow.py_extension_type', which is Python code in pickled form"


@pytest.fixture
def proof(tmp_path: Path) -> Path:
    """Returns the file that the crafted file's program would make."""
    return tmp_path / "proof"


@pytest.fixture
def crafted(tmp_path: Path, proof: Path) -> Path:
    return write_crafted(tmp_path / "crafted.parquet", proof)


def test_step_refuses_a_crafted_file_or_reads_its_storage_type(
    run_step: Any, warm_launcher: Any, runtime: Path, crafted: Path, proof: Path
) -> None:
    sources = {"flights": Source.from_value("flights", str(crafted)).to_dict()}
    params = {"sources": sources, "window_start": None, "window_end": None}
    ingest = {"params": params, "kind": "snapshot", "launcher": warm_launcher}
    if profile_of(runtime) is BASE:
        with pytest.raises(StepFailed, match=r"crafted\.parquet: refused: " + REFUSED) as failed:
            run_step("airflow_hops.ml.stages.ingest:run", **ingest)
        assert not failed.value.retryable
    else:
        run_step("airflow_hops.ml.stages.ingest:run", **ingest)
    assert not proof.exists()
