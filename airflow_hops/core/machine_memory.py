"""The memory that this process may use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

# File with a group's limit, by type of file system (cgroups(7)): versions 2 and 1, which may both be mounted.
_LIMITS = {"cgroup2": "memory.max", "cgroup": "memory.limit_in_bytes"}


def memory_bytes(root: Path = Path("/")) -> int:
    """Returns the memory of the machine, or the least limit of the control groups around this process.

    Args:
        root: Folder with ``proc`` and ``sys``.
    """
    return min([os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), *_group_limits(root)])


def _group_limits(root: Path) -> Iterator[int]:
    """Yields the limits of this process's groups and of all groups around them: each of them holds."""
    try:
        groups = [line.split(":", 2) for line in (root / "proc/self/cgroup").read_text().splitlines()]
        mounts = [line.split(" ") for line in (root / "proc/self/mountinfo").read_text().splitlines()]
    except OSError:
        return  # not Linux
    own = {
        "cgroup" if controllers else "cgroup2": path
        for _, controllers, path in groups
        if not controllers or "memory" in controllers.split(",")
    }
    for mount in mounts:
        kind, options = mount[mount.index("-") + 1], mount[-1].split(",")
        if kind not in own or (kind == "cgroup" and "memory" not in options):
            continue
        # In a container, the mount may begin at its group, and the group's path outside be another.
        group, (mounted, folder) = PurePosixPath(own[kind]), (path.replace(r"\040", " ") for path in mount[3:5])
        inside = group.relative_to(mounted) if group.is_relative_to(mounted) else PurePosixPath()
        for each in (inside, *inside.parents):
            path = root / folder.lstrip("/") / each / _LIMITS[kind]
            if path.is_file() and (text := path.read_text().strip()).isdecimal():
                yield int(text)
