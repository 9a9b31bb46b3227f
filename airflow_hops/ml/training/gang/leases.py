"""Leases of GPUs: two tasks of one host never share one.

A lease is a lock on a file whose path is the same for every process of the host. The kernel holds it for as long as any
process has the file open, including the ranks, so that a crash releases it but an orphaned rank keeps it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Sequence
from pathlib import Path

from airflow_hops.core.artifacts.artifact import segment
from airflow_hops.core.errors import BadInput, HopsError
from airflow_hops.core.processes.files import open_folder, try_lock
from airflow_hops.core.processes.temporary_folders import shared_temporary_folder
from airflow_hops.ml.training.devices import Gpu

# To lease: open the GPU's file (without following links), try flock() without waiting, write the holder's name into it.
# The name only serves other tasks' errors; the lock alone decides. Files are never removed, since a new file of the
# same name would have another lock. Two tasks that each get some of the GPUs they need both give up and release: no
# task waits while it holds a lease.

FOLDER_VARIABLE = "HOPS_GPU_LEASES"
"""Environment variable with the folder of the locks; by default ``hops-gpu-leases`` in the host's temporary folder."""


class GpuLeases:
    """``count`` leased GPUs; errors of other tasks name the ``holder``.

    Attributes:
        ids: Names of the GPUs in ``CUDA_VISIBLE_DEVICES``.

    Raises:
        BadInput: the host has fewer GPUs, or this user may not take a lock.
        HopsError: other tasks lease too many of the GPUs.
    """

    def __init__(self, gpus: Sequence[Gpu], count: int, holder: str) -> None:
        if count > len(gpus):
            raise BadInput(
                f"{count} ranks need a GPU each, but this host has {len(gpus)}; lower np or the host's slots"
            )
        self.ids: list[str] = []
        self._descriptors: list[int] = []
        held: list[str] = []
        try:
            for gpu in gpus:
                if len(self.ids) == count:
                    break
                by = self._take(gpu.id, holder)
                if by is None:
                    self.ids.append(gpu.id)
                else:
                    held.append(f"{gpu.id}: {by}")
            if len(self.ids) < count:
                raise HopsError(
                    f"{count} of this host's {len(gpus)} GPUs are wanted, and {len(held)} are leased "
                    f"({'; '.join(held)}); give the tasks a pool with as many slots as there are GPUs"
                )
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Releases the GPUs, unless a rank still lives."""
        while self._descriptors:
            os.close(self._descriptors.pop())

    def _take(self, gpu: str, holder: str) -> str | None:
        """Leases a GPU; returns its holder if it is already leased."""
        named = os.environ.get(FOLDER_VARIABLE)
        folder = Path(named) if named else shared_temporary_folder() / "hops-gpu-leases"
        name = f"{segment(gpu)}.lock"
        try:
            descriptor = _open(folder, name)
        except OSError as error:
            raise BadInput(
                f"{folder / name}: the GPU cannot be leased: {error.strerror}; expected a file that all users of this "
                f"host's GPUs may write, in a folder that is not a link ({FOLDER_VARIABLE} names another folder)"
            ) from error
        if not try_lock(descriptor):
            by = os.pread(descriptor, 500, 0).decode(errors="replace").strip()
            os.close(descriptor)
            return by or "an unknown process"
        self._descriptors.append(descriptor)
        os.truncate(descriptor, 0)
        os.pwrite(descriptor, f"{holder} (process {os.getpid()})\n".encode(), 0)
        with contextlib.suppress(OSError):  # the file belongs to another user
            os.fchmod(descriptor, 0o666)
        return None


def _open(folder: Path, name: str) -> int:
    try:
        folder.mkdir(parents=True)
        is_new = True
    except FileExistsError:
        is_new = False
    # Any user may create links in the host's temporary folder, so they are not followed.
    inside = open_folder(folder)
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        if is_new:
            os.fchmod(inside, 0o1777)
        try:
            # Without O_CREAT, which the kernel may refuse for another user's file.
            descriptor = os.open(name, flags, dir_fd=inside)
        except FileNotFoundError:
            descriptor = os.open(name, flags | os.O_CREAT, 0o666, dir_fd=inside)
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:  # the lease is written into it
            os.close(descriptor)
            raise OSError(errno.EMLINK, "it is a link to another file")
        return descriptor
    finally:
        os.close(inside)
