"""Captured requests that something needs, for the garbage collection of a store.

Needed are the files that are young, that a rollout reads, that monitors need, and
the newest one, by which a monitor sees that requests arrive. Labels are needed for all requests that are.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime, timedelta

from airflow_hops.core.capture_layout import FEEDBACK_FOLDER, folder_name, name_time, time_of
from airflow_hops.core.errors import HopsError
from airflow_hops.core.store.artifact_store import ArtifactStore
from airflow_hops.core.times import as_utc
from airflow_hops.extensions.governance.core.rule import CapturedFiles, Removal


def sort_out(
    captures: ArtifactStore, model: str, needs: Iterable[CapturedFiles], reason: str
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
    for need in [*needs, *(CapturedFiles("the newest", name, name) for name in rows[-1:])]:
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
    needed = {f"{folder}/{members[0]}": f"{why} (files: {len(members)})" for why, members in groups.items()}
    return removal, needed, sum(sizes[path] for path in reasons)


def _time(path: str) -> datetime:
    return as_utc(path.rpartition("/")[2].partition("-")[0])
