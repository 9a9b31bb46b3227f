"""Captured requests that something needs, for the garbage collection of a store.

Needed are the files that are young, that a skew monitor has not compared yet or an active run compares again, that a
retained report measured, that a rollout reads, and the newest one, by which a monitor sees that requests arrive. Labels
are needed for all requests that are.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from airflow_hops.core.contract.artifacts import BadInput, HopsError, Manifest
from airflow_hops.core.contract.capture_layout import FEEDBACK_FOLDER, folder_name, name_time, time_of
from airflow_hops.core.contract.performance import PerformanceProperties
from airflow_hops.core.contract.retention import IsActive, Removal
from airflow_hops.core.contract.retraining.situation import as_utc
from airflow_hops.core.contract.skew import SkewProperties
from airflow_hops.core.store.artifact_store import ArtifactStore

_END = "~"
"""Follows all names of captured files."""


@dataclass(frozen=True)
class Need:
    """Captured files of a model that are needed: those with names from ``first`` to ``last``."""

    reason: str
    first: str = ""
    last: str = _END


def need_of_report(uri: str, manifest: Manifest, *, newest: bool) -> tuple[str, Need] | None:
    """Returns the model of a retained report, and the need for the requests that it measured; None if for none.

    The next measurement reads requests that the newest one has read, and later ones.
    """
    if "captured" in manifest.inputs:
        return None  # it measured an artifact
    if manifest.kind == "skew":
        skew = SkewProperties.of(manifest.reference(uri))
        model, files = skew.reference.model or "", skew.captured_files
    else:
        performance = PerformanceProperties.of(manifest.reference(uri))
        model, files = performance.model_name, performance.captured_files
    if files is None:
        return None
    return model, Need(f"measured by {uri}", files[0], _END if newest and manifest.kind == "performance" else files[1])


def needs_of_cursor(store: ArtifactStore, uri: str, is_active: IsActive, young: str) -> Iterator[tuple[str, Need]]:
    """Yields the needs of a skew monitor, by model, from its ``captured.json``.

    Files after the name ``young`` are retained anyway.

    Raises:
        BadInput: the file cannot be read.
    """
    _, dag_id, task_id, _ = uri.removeprefix(f"{store.root}/").split("/")
    try:
        state = store.read_json(uri)
        needs = [Need(f"not compared yet by task {task_id} of {dag_id}; its position is {uri}", _after(state["until"]))]
        for run_id, window in state["runs"].items():
            first, last = _after(window["after"]), window["until"]
            if last is not None and first < young and is_active(dag_id, run_id):
                needs.append(Need(f"compared by run {run_id} of {dag_id}", first, last))
        for model in state["models"]:
            yield from ((model, need) for need in needs)
    except FileNotFoundError:
        return
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadInput(
            f"nothing is removed: {uri}: not the position of a skew monitor ({error!r}); remove it"
        ) from error


def sort_out(
    captures: ArtifactStore, model: str, needs: Iterable[Need], reason: str
) -> tuple[Removal | None, dict[str, str], int]:
    """Returns the captured files of a model that can be removed, and reasons for the others by address with their size.

    Args:
        captures: Store at the capture base path.
        model: Model name.
        needs: Needs for files of the model.
        reason: Reason for a removal.

    Raises:
        BadInput: a package for the capture path is missing.
        HopsError: the folder cannot be listed.
    """
    folder = f"{captures.root}/{folder_name(model)}"
    try:
        sizes = captures.files.sizes(folder)
    except HopsError:
        raise
    except Exception as error:  # whatever the file system's own client raises
        raise HopsError(f"nothing is removed: captured requests at {folder} cannot be listed ({error!r})") from error
    files = sorted((path.rpartition("/")[2], path) for path in sizes if time_of(path.rpartition("/")[2]))
    names, rows = [name for name, _ in files], [name for name, path in files if name == path]
    reasons: dict[str, str] = {}
    for need in [*needs, *(Need("the newest", name, name) for name in rows[-1:])]:
        for _, path in files[bisect_left(names, need.first) : bisect_right(names, need.last)]:
            reasons.setdefault(path, need.reason)
    for oldest in [name for name in rows if name in reasons][:1]:
        # Labels follow their requests, but may be written a little earlier.
        for _, path in files[bisect_left(names, name_time(_time(oldest) - timedelta(days=1))) :]:
            if path.startswith(f"{FEEDBACK_FOLDER}/"):
                reasons.setdefault(path, "labels of needed requests")
    groups, removal = defaultdict[str, list[str]](list), None
    for _, path in files:
        groups[reasons.get(path, "")].append(path)
    if paths := groups.pop("", None):
        size_bytes, why = sum(sizes[path] for path in paths), f"{reason} (files: {len(paths)})"
        removal = Removal(folder, "captured requests", _time(paths[0]), size_bytes, why, paths)
    needed = {f"{folder}/{of[0]}": f"{why} (files: {len(of)})" for why, of in groups.items()}
    return removal, needed, sum(sizes[path] for path in reasons)


def _time(path: str) -> datetime:
    return as_utc(path.rpartition("/")[2].partition("-")[0])


def _after(name: str | None) -> str:
    """Returns a text between a name and the next one; names begin with a time, so None is before all."""
    return "" if name is None else f"{name}\0"
