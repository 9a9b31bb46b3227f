"""Leases of GPUs: two tasks of one host never share one.

A lease is a lock on a file that every process of the host agrees upon. The kernel holds it for as long as one of the
processes lives that have the file open, the ranks among them, so that a crash gives it back and an orphan does not.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path

from airflow_hops.artifacts import BadInput, HopsError
from airflow_hops.hops.devices import Gpu

LEASED_VARIABLE = "AIRFLOW_HOPS_LEASED_GPUS"
"""Environment variable of a rank with the GPUs of all slots of its host, for one that gets another slot."""

FOLDER_VARIABLE = "HOPS_GPU_LEASES"
"""Environment variable with the folder of the locks; by default ``hops-gpu-leases`` below the host's temporary one."""


class GpuLeases:
    """Leased GPUs.

    Args:
        gpus: Those to choose from.
        count: How many are wanted.
        holder: Who wants them, for the message that others get.

    Attributes:
        ids: What ``CUDA_VISIBLE_DEVICES`` calls them.

    Raises:
        BadInput: there are fewer, or a lock is not this user's to take.
        HopsError: too many of them are leased to others.
    """

    def __init__(self, gpus: Sequence[Gpu], count: int, holder: str) -> None:
        if count > len(gpus):
            raise BadInput(
                f"{count} ranks want a GPU each, and this host has {len(gpus)}; lower np or the host's slots"
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

    def environment(self, slot: int) -> dict[str, str]:
        """The variables by which the rank in a slot sees the slot's GPU alone."""
        return {"CUDA_VISIBLE_DEVICES": self.ids[slot], LEASED_VARIABLE: ",".join(self.ids)}

    def release(self) -> None:
        """Gives them back, unless a rank still lives."""
        while self._descriptors:
            os.close(self._descriptors.pop())

    def _take(self, gpu: str, holder: str) -> str | None:
        """Leases a GPU; answers who has it where it is leased."""
        path = _folder() / f"{re.sub(r'[^A-Za-z0-9_.-]', '_', gpu)}.lock"
        try:
            descriptor = _open(path)
        except OSError as error:
            raise BadInput(
                f"{path}: the GPU cannot be leased: {error.strerror}; expected a file that all users of this host's "
                f"GPUs may write ({FOLDER_VARIABLE} names another folder)"
            ) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            by = os.pread(descriptor, 500, 0).decode(errors="replace").strip()
            os.close(descriptor)
            return by or "somebody"
        self._descriptors.append(descriptor)
        os.truncate(descriptor, 0)
        os.pwrite(descriptor, f"{holder} (process {os.getpid()})\n".encode(), 0)
        with contextlib.suppress(OSError):  # another user's file
            os.fchmod(descriptor, 0o666)
        return None


def take_slot(slot: int) -> None:
    """Has this process, a rank whose slot is known only now, see that slot's GPU, if there are any.

    CUDA reads the variable once, when TensorFlow first looks for devices: it must not have looked yet.
    """
    leased = os.environ.get(LEASED_VARIABLE)
    if leased:
        os.environ["CUDA_VISIBLE_DEVICES"] = leased.split(",")[slot]


def _open(path: Path) -> int:
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        return os.open(path, flags)  # not O_CREAT, which the kernel may refuse for another user's file
    except FileNotFoundError:
        return os.open(path, flags | os.O_CREAT, 0o666)


def _folder() -> Path:
    given = os.environ.get(FOLDER_VARIABLE)
    folder = Path(given) if given else Path(tempfile.gettempdir()) / "hops-gpu-leases"
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(OSError):  # another user has made it
        folder.chmod(0o1777)
    return folder
