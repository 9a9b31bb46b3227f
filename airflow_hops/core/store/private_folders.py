"""Folders that only this user can enter, and that persist between processes.

All users share the temporary folder, so files with predictable names are trusted only in a folder that others cannot
write.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

from airflow_hops.core.errors import BadInput
from airflow_hops.core.processes.temporary_folders import shared_temporary_folder

CACHE_VARIABLE = "HOPS_LOCAL_CACHE"
"""Environment variable with the parent folder of the users' caches; by default the temporary folder."""


def cache_folder() -> Path:
    """Returns this user's private folder for files that persist between processes.

    Raises:
        BadInput: as :func:`private_folder`.
    """
    root = os.environ.get(CACHE_VARIABLE) or shared_temporary_folder()
    return private_folder(Path(root).expanduser() / f"hops-{os.getuid()}")


def private_folder(path: Path) -> Path:
    """Creates a folder that only this user can enter, or checks an existing one.

    Raises:
        BadInput: it is a link, not a folder, belongs to another user, or other users can write to it.
    """
    with contextlib.suppress(FileExistsError):
        path.mkdir(parents=True, mode=0o700)
    status = path.lstat()
    mode = stat.S_IMODE(status.st_mode)
    if stat.S_ISLNK(status.st_mode):
        result = "is a symbolic link"
    elif not stat.S_ISDIR(status.st_mode):
        result = "is not a folder"
    elif status.st_uid != os.getuid():
        result = f"belongs to user {status.st_uid}"
    elif mode & 0o022:
        result = f"can be written by others (mode {mode:o})"
    else:
        if mode & 0o077:
            path.chmod(0o700)
        return path
    raise BadInput(
        f"{path} {result}; expected a folder of user {os.getuid()} that nobody else can write, since what is in it is "
        f"trusted. Remove it, or name another place in the environment variable {CACHE_VARIABLE} or TMPDIR"
    )
