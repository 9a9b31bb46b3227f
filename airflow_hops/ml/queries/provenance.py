"""Provenance of runs: data, libraries and code, and differences between the code of two runs.

It comes from the store's record of a run or, without a record, from what the run logged to MLflow.
"""

from __future__ import annotations

import difflib
import json
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from airflow_hops.core.contract.artifacts import Artifact, BadInput, HopsError
from airflow_hops.core.contract.run_record import RunRecord
from airflow_hops.core.store.run_records import read_code, read_record
from airflow_hops.ml.queries import run_files
from airflow_hops.ml.queries.place import Place
from airflow_hops.ml.queries.runs import find_run
from airflow_hops.ml.tracking.training_run import RECORD_TAG

__all__ = ["code_diff", "get"]
_LOCK = "environment/requirements.txt"
_CODE = "code/"
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


def get(place: Place, params: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the provenance of run ``run_id`` of ``experiment``.

    Returns:
        ``recorded``: whether the store has a record of it; ``python`` and ``package`` (versions; null if not known),
        ``packages`` (versions by name; null if not known), ``data``, each with ``role``, ``uri``, ``fingerprint``,
        ``window`` (null if it has none), ``rows`` (by split) and ``made_by`` (``dag_id``, ``run_id``, ``task_id``,
        ``map_index``, ``iteration``, ``kind``). The last three are empty if the artifact is gone, or belongs to another
        DAG.

    Raises:
        FileNotFoundError: the DAG has no run with this ID, or it was deleted.
    """
    _, run = find_run(place, params)
    dag_id = params["experiment"]
    record = _record(place, dag_id, run)
    if record is None:
        packages: dict[str, str] | None = None
        with suppress(FileNotFoundError, BadInput, UnicodeDecodeError):
            text = run_files.read(place, {**params, "path": _LOCK, "max_bytes": _MAX_CHARACTERS}).decode()
            pairs = (line.strip().partition("==") for line in text.splitlines() if "==" in line)
            packages = {name.lower().replace("_", "-").replace(".", "-"): version for name, _, version in pairs}
        data = _logged_data(place, dag_id, run)
        return {"recorded": False, "python": None, "package": None, "packages": packages, "data": data}
    data = [_data(place, dag_id, role, a) for role, values in record.artifacts().items() for a in values]
    data += _statistics(place, dag_id, run, {each["uri"] for each in data})
    return {
        "recorded": True,
        "python": record.python or None,
        "package": record.package_version,
        "packages": dict(record.packages),
        "data": data,
    }


def code_diff(place: Place, params: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the differences between the code of the runs ``run_id`` and ``other`` of ``experiment``.

    Returns:
        ``files``, each with ``path``, ``change`` (``added``, ``removed``, ``changed``), ``diff`` (unified; null if it
        cannot be shown) and ``why`` (why it cannot); ``same``, the number of equal files; ``lacking``, the ids of runs
        whose code is not known; ``whole``, false if more files differ than are listed.

    Raises:
        FileNotFoundError: the DAG has no run with this ID, or it was deleted.
    """
    ids = [params["run_id"], params["other"]]
    sides = [_code(place, {"experiment": params["experiment"], "run_id": run_id}) for run_id in ids]
    lacking = [run_id for run_id, side in zip(ids, sides, strict=True) if side is None]
    if lacking:
        return {"files": [], "same": 0, "lacking": lacking, "whole": True}
    (before, all_before), (after, all_after) = (side or ({}, True) for side in sides)
    names = sorted(name for name in {*before, *after} if before.get(name) != after.get(name))
    until = time.monotonic() + _MAX_SECONDS
    return {
        "files": [_file_diff(name, before.get(name), after.get(name), until) for name in names[:_MAX_FILES]],
        "same": len({*before, *after}) - len(names),
        "lacking": [],
        "whole": len(names) <= _MAX_FILES and all_before and all_after,
    }


def _record(place: Place, dag_id: str, run: Any) -> RunRecord | None:
    key = run.data.tags.get(RECORD_TAG)
    return None if key is None else read_record(place.store, dag_id, key)


def _code(place: Place, params: Mapping[str, Any]) -> tuple[dict[str, str | bytes], bool] | None:
    """Returns files by path, decoded if possible, and whether these are all; None if the code is not known."""
    _, run = find_run(place, params)
    record = _record(place, params["experiment"], run)
    if record is not None and record.code is not None:
        # Drops the number of the first folder, which is mostly the only one.
        files = {name.removeprefix("0/"): content for name, content in read_code(place.store, record).items()}
        training = record.params.get("training") or record.params  # nested for a search
        shipped = training.get("shipped") or training
        if {"source", "function"} <= shipped.keys():
            files[f"<{shipped['function']}>.py"] = str(shipped["source"]).encode()  # not a possible name of a module
        whole = not record.code_left_out
    else:
        logged = run_files.tree(place, params)
        sizes = {each["path"]: each["size_bytes"] for each in logged["files"] if each["path"].startswith(_CODE)}
        if not sizes:
            return None
        paths = [path for path, size in sizes.items() if size is None or size <= _MAX_CHARACTERS][:_MAX_FILES]
        values = [{**params, "path": path, "max_bytes": _MAX_CHARACTERS + 1} for path in paths]
        files = {each["path"].removeprefix(_CODE): run_files.read(place, each) for each in values}
        whole = logged["whole"] and len(paths) == len(sizes) and all(len(f) <= _MAX_CHARACTERS for f in files.values())
    return {name: _text(name, content) for name, content in files.items()}, whole


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


def _file_diff(path: str, before: str | bytes | None, after: str | bytes | None, until: float) -> dict[str, Any]:
    change = "added" if before is None else "removed" if after is None else "changed"
    results: dict[str, Any] = {"path": path, "change": change, "diff": None, "why": None}
    if isinstance(before, bytes) or isinstance(after, bytes):
        return {
            **results,
            "why": "only .py and .ipynb files are shown"
            if not path.endswith(_SOURCES)
            else "it is not text, or too long",
        }
    if time.monotonic() > until:
        return {**results, "why": "comparing the other files took too long"}
    old, new = (before or "").splitlines(), (after or "").splitlines()
    if max(len(old), len(new)) > _MAX_LINES:
        return {**results, "why": f"it has more than {_MAX_LINES:,} lines"}
    lines = list(difflib.unified_diff(old, new, lineterm="", n=_CONTEXT_LINES))[2:]
    if len(lines) > _MAX_DIFF_LINES:
        return {**results, "why": f"more than {_MAX_DIFF_LINES:,} lines differ"}
    return {**results, "diff": "\n".join(lines)}


def _logged_data(place: Place, dag_id: str, run: Any) -> list[dict[str, Any]]:
    """Returns the data sets that a run without a record logged, each artifact once."""
    results: dict[str, dict[str, Any]] = {}
    for each in run.inputs.dataset_inputs if run.inputs else []:
        try:
            source = json.loads(each.dataset.source)
            artifact = Artifact(source["uri"], source["kind"], source["fingerprint"])
        except (ValueError, LookupError, TypeError):
            continue
        results.setdefault(artifact.uri, _data(place, dag_id, "examples", artifact))
    return [*results.values(), *_statistics(place, dag_id, run, set(results))]


def _statistics(place: Place, dag_id: str, run: Any, known: set[str]) -> Iterator[dict[str, Any]]:
    """Yields the statistics of the examples, which are not an input of every training."""
    uri = run.data.tags.get("hops.statistics")
    if uri and uri not in known:
        try:
            yield _data(place, dag_id, "statistics", place.store.manifest(uri).reference(uri))
        except HopsError:
            return


def _data(place: Place, dag_id: str, role: str, artifact: Artifact) -> dict[str, Any]:
    results = {"role": role, "uri": artifact.uri, "fingerprint": artifact.fingerprint}
    try:
        manifest = place.store.manifest(artifact.uri)
    except HopsError:
        return {**results, "window": None, "rows": {}, "made_by": None}
    producer, kind = manifest.producer, manifest.kind
    if producer.dag_id != dag_id:  # readers of this pipeline may lack access to that one
        return {**results, "window": None, "rows": {}, "made_by": None}
    made_by = {"dag_id": producer.dag_id, "run_id": producer.run_id, "task_id": producer.task_id}
    return {
        **results,
        "window": manifest.properties.get("window"),
        "rows": {split: counts.rows_out for split, counts in manifest.rows.items()},
        "made_by": {**made_by, "map_index": producer.map_index, "iteration": producer.iteration, "kind": kind},
    }
