"""Memory that a process may use, in control groups of both versions."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from airflow_hops.core.machine_memory import memory_bytes

MACHINE_BYTES = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
LIMITS = {"cgroup2": "memory.max", "cgroup": "memory.limit_in_bytes"}


def make_groups(draw: random.Random, root: Path) -> int:
    """Makes the files of a process in nested groups, of which each may have a limit; returns the least."""
    (root / "proc/self").mkdir(parents=True)
    groups, mounts, limits = ["11:cpu,cpuacct:/elsewhere"], ["1 2 0:1 / /proc rw - proc proc rw"], [MACHINE_BYTES]
    for kind in draw.choice([["cgroup2"], ["cgroup"], ["cgroup", "cgroup2"], []]):
        parts = draw.choices(["system.slice", "a b.service", "docker", "x:y"], k=draw.randrange(6))
        place = "sys/fs/cgroup" + ("/memory" if kind == "cgroup" else draw.choice(["", "/unified"]))
        hidden = draw.randrange(len(parts) + 1)  # groups outside of the mount, as in a container
        is_inside = draw.random() < 0.5  # whether the process sees its path from within the mount
        around, within = parts[:hidden], parts[hidden:]
        named = "/" + "/".join(within if is_inside else parts)
        groups.append(f"{'4:memory' if kind == 'cgroup' else '0:'}:{named}")
        mount_root = "/" if is_inside else "/" + "/".join(around)
        mount_root = mount_root.replace(" ", "\\040")
        mounts.append(f"3 4 0:2 {mount_root} /{place} rw - {kind} cgroup rw" + (",memory" if kind == "cgroup" else ""))
        folder = root / place
        for part in ["", *within]:
            folder = folder / part
            folder.mkdir(parents=True, exist_ok=True)
            limit = draw.choice([None, "max", "9223372036854771712", draw.randrange(2**20, 2 * MACHINE_BYTES)])
            if limit is not None:
                (folder / LIMITS[kind]).write_text(f"{limit}\n")
                limits += [int(limit)] if limit != "max" else []
        (folder / "inner").mkdir()
        (folder / "inner" / LIMITS[kind]).write_text("4096")  # of a group that the process is not in
    draw.shuffle(groups)
    (root / "proc/self/cgroup").write_text("\n".join(groups))
    (root / "proc/self/mountinfo").write_text("\n".join(mounts))
    return min(limits)


@pytest.mark.parametrize("draws", [100, pytest.param(2000, marks=pytest.mark.scheduled(part="campaigns"))])
def test_least_limit_of_all_groups_counts(tmp_path: Path, draws: int) -> None:
    for number in range(draws):
        expected = make_groups(random.Random(number), tmp_path / str(number))
        assert memory_bytes(tmp_path / str(number)) == expected, number


def test_limit_of_a_group_around_is_seen(tmp_path: Path) -> None:
    assert memory_bytes(tmp_path) == MACHINE_BYTES  # without /proc, as on macOS
    assert 0 < memory_bytes() <= MACHINE_BYTES
