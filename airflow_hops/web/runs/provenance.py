"""Provenance of training runs, from their records in the store: data, libraries and code, and differences of code."""

from __future__ import annotations

import difflib
import json
import time
from typing import Any, Literal

from fastapi import APIRouter

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.steps.run_record import RunRecord, read_code, read_record
from airflow_hops.core.store import ArtifactStore
from airflow_hops.core.training.record import TrainingRecord
from airflow_hops.runner.runtime import RuntimeHook
from airflow_hops.web.access import READS_ARTIFACTS, READS_CODE, READS_RUNS
from airflow_hops.web.artifacts.lookup import Gone, manifest_at, reaching
from airflow_hops.web.artifacts.routes import ArtifactAddress, address_of
from airflow_hops.web.runs.records import Trainings
from airflow_hops.web.runs.trainings import TrainingId, tracking_hook
from airflow_hops.web.types import Model

router = APIRouter(
    prefix="/api/dags/{dag_id}/training-runs", tags=["training runs"], dependencies=[READS_RUNS, READS_ARTIFACTS]
)
_MAX_FILES = 200
_MAX_CHARACTERS = 1 << 20
_MAX_LINES = 2000
"""Largest file that is compared: the time grows with the square, a second for this."""
_MAX_SECONDS = 5.0
"""Time limit for comparing all files."""
_SOURCES = (".py", ".ipynb")
"""Files whose text is shown; other files may contain data or secrets."""
_MAX_DIFF_LINES = 2000
_CONTEXT_LINES = 3


class RunData(Model):
    """An artifact that a run read."""

    role: str
    uri: str
    fingerprint: str
    window: list[str | None] | None
    rows: dict[str, int]
    """Rows by split or table."""
    made_by: ArtifactAddress | None
    """Null if it is gone, or belongs to another pipeline."""


class RunProvenance(Model):
    """The provenance of a run."""

    python: str | None = None
    package: str | None = None
    """Version of airflow-hops."""
    packages: dict[str, str] | None = None
    """Versions by name; null if unknown."""
    data: list[RunData]


class FileDifference(Model):
    """A source file that differs."""

    path: str
    change: Literal["added", "removed", "changed"]
    diff: str | None
    """Unified diff without header; null if it cannot be shown."""
    why: str | None
    """Reason why it cannot be shown."""


class CodeDifferences(Model):
    """Differences between the code of two runs."""

    files: list[FileDifference]
    same: int
    """Number of identical files."""
    lacking: list[str]
    """Runs whose code is unknown."""
    whole: bool
    """False if more files differ than are listed."""


@router.get("/{training_id}/provenance")
def get_run_provenance(dag_id: str, training_id: TrainingId) -> RunProvenance:
    """Returns data and libraries of a training run; those of a run without a record are not known."""
    hook, training, record = _find_step(dag_id, training_id)
    store = hook.store
    inputs = [] if record is None else [(role, each) for role, all in record.artifacts().items() for each in all]
    with reaching(store):
        data = [_data(store, dag_id, role, artifact) for role, artifact in inputs]
        # The statistics of the examples are not an input of every training.
        uri = training.tags.get("hops.statistics")
        if uri and uri not in {each.uri for each in data} and (manifest := manifest_at(store, uri)) is not None:
            data.append(_data(store, dag_id, "statistics", manifest.reference(uri)))
    if record is None:
        return RunProvenance(data=data)
    return RunProvenance.of(record, python=record.python or None, package=record.package_version, data=data)


@router.get("/{training_id}/code-differences/{other_run_id}", dependencies=[READS_CODE])
def get_code_differences(dag_id: str, training_id: TrainingId, other_run_id: TrainingId) -> CodeDifferences:
    """Returns the differences of another run's code from that of a run."""
    ids = [training_id, other_run_id]
    sides = [_code(dag_id, run_id) for run_id in ids]
    lacking = [run_id for run_id, side in zip(ids, sides, strict=True) if side is None]
    if lacking:
        return CodeDifferences(files=[], same=0, lacking=lacking, whole=True)
    (old, all_before), (new, all_after) = (side or ({}, True) for side in sides)
    names = sorted(name for name in {*old, *new} if old.get(name) != new.get(name))
    until = time.monotonic() + _MAX_SECONDS
    return CodeDifferences(
        files=[_file_diff(name, old.get(name), new.get(name), until) for name in names[:_MAX_FILES]],
        same=len({*old, *new}) - len(names),
        lacking=[],
        whole=len(names) <= _MAX_FILES and all_before and all_after,
    )


def code_files(store: ArtifactStore, step: RunRecord) -> dict[str, bytes]:
    """Returns the user code of a step by path, a function of the DAG file as ``<name>.py``.

    Raises:
        BadInput: as :func:`~airflow_hops.core.steps.run_record.read_code`.
    """
    # Without the number of the first folder, which is mostly the only one.
    files = {path.removeprefix("0/"): content for path, content in read_code(store, step).items()}
    training = step.params.get("training") or step.params  # nested for a search
    shipped = training.get("shipped") or training
    if {"source", "function"} <= shipped.keys():
        files[f"<{shipped['function']}>.py"] = str(shipped["source"]).encode()  # not a possible name of a module
    return files


def _find_step(dag_id: str, training_id: str) -> tuple[RuntimeHook, TrainingRecord, RunRecord | None]:
    """Returns the hook of a training, its record and that of its step; HTTPException (404, 410) if one is missing."""
    hook = tracking_hook(dag_id)
    _, training = Trainings(hook.store, dag_id).find(training_id)
    if training.record is None:
        return hook, training, None
    with reaching(hook.store):
        record = read_record(hook.store, dag_id, training.record)
    if record is None:
        raise Gone(f"the step's record {training.record} was deleted from {hook.store.root}, or not written")
    return hook, training, record


def _code(dag_id: str, run_id: str) -> tuple[dict[str, str | bytes], bool] | None:
    """Returns files by path, decoded if possible, and whether these are all; None if the code is not known."""
    hook, _, record = _find_step(dag_id, run_id)
    if record is None or record.code is None:
        return None
    with reaching(hook.store):
        files = code_files(hook.store, record)
    return {name: _text(name, content) for name, content in files.items()}, not record.code_left_out


def _data(store: ArtifactStore, dag_id: str, role: str, artifact: Artifact) -> RunData:
    facts: dict[str, Any] = {"window": None, "rows": {}, "made_by": None}
    manifest = manifest_at(store, artifact.uri)
    # Readers of this pipeline may lack access to another one.
    if manifest is not None and manifest.producer.dag_id == dag_id:
        rows = {split: counts.rows_out for split, counts in manifest.rows.items()}
        facts = {"window": manifest.properties.get("window"), "rows": rows, "made_by": address_of(manifest)}
    return RunData.of(artifact, role=role, **facts)


def _text(name: str, content: bytes) -> str | bytes:
    """Decodes a source, or the code cells of a notebook; returns other files and very long ones unchanged."""
    if not name.endswith(_SOURCES):
        return content
    try:
        text = content.decode()
        if name.endswith(".ipynb"):
            cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
            text = "\n".join(f"# [{place}]\n{''.join(cell['source'])}\n" for place, cell in enumerate(cells, start=1))
    except (ValueError, LookupError, TypeError):
        return content
    return content if "\0" in text or len(text) > _MAX_CHARACTERS else text


def _file_diff(
    path: str, old_content: str | bytes | None, new_content: str | bytes | None, until: float
) -> FileDifference:
    change: Literal["added", "removed", "changed"] = "changed"
    if old_content is None or new_content is None:
        change = "added" if old_content is None else "removed"

    def without_diff(why: str) -> FileDifference:
        return FileDifference(path=path, change=change, diff=None, why=why)

    if isinstance(old_content, bytes) or isinstance(new_content, bytes):
        is_source = path.endswith(_SOURCES)
        return without_diff("it is not text, or too long" if is_source else "only .py and .ipynb files are shown")
    if time.monotonic() > until:
        return without_diff("comparing the other files took too long")
    old, new = (old_content or "").splitlines(), (new_content or "").splitlines()
    if max(len(old), len(new)) > _MAX_LINES:
        return without_diff(f"it has more than {_MAX_LINES:,} lines")
    lines = list(difflib.unified_diff(old, new, lineterm="", n=_CONTEXT_LINES))[2:]
    if len(lines) > _MAX_DIFF_LINES:
        return without_diff(f"more than {_MAX_DIFF_LINES:,} lines differ")
    return FileDifference(path=path, change=change, diff="\n".join(lines), why=None)
