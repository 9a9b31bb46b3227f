"""The memory that this process may use."""

from __future__ import annotations

import os
from pathlib import Path


def memory_bytes() -> int:
    """Returns the memory of the machine, or the limit of the control group if that is less."""
    limit_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        path = Path(limit)
        if path.exists() and (text := path.read_text().strip()).isdecimal():
            limit_bytes = min(limit_bytes, int(text))
    return limit_bytes
