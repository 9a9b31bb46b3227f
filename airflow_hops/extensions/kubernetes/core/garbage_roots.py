"""Archives of code for pods, in the garbage collection of a store."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta

from airflow_hops.core.retention.garbage_roots import FileRemoval, GarbageRoots, StoreListing

_AGE = timedelta(days=7)
_ARCHIVE = re.compile(r"_code/[0-9a-f]{64}\.zip")


class CodeArchives(GarbageRoots):
    """Archives with which no pod was created for a week; each pod's creation touches its archive."""

    def removals(self, listing: StoreListing) -> Iterator[FileRemoval]:
        """Yields the archives."""
        paths = [path for path in listing.sizes if _ARCHIVE.fullmatch(path)]
        for path, time in listing.modified(paths).items():
            if time < listing.now - _AGE:
                uri, reason = f"{listing.store.root}/{path}", "no pod was created with it for a week"
                yield FileRemoval(uri, "code of pods", time, listing.sizes[path], reason)
