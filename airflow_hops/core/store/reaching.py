"""Converts errors of a store's file system to errors with advice."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from airflow_hops.core.errors import BadInput, HopsError

_FULL = (errno.ENOSPC, errno.EDQUOT)
_FOR_GOOD = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.EEXIST, errno.ENAMETOOLONG)


@contextmanager
def reaching_store(root: str) -> Iterator[None]:
    """Names the store, and the field with its address, in errors of its file system.

    Raises:
        BadInput: the store does not exist or cannot be written.
        HopsError: another error, possibly temporary.
    """
    try:
        yield
    except HopsError:
        raise
    except Exception as error:  # whatever the file system's own client raises
        number = error.errno if isinstance(error, OSError) else None
        if number in _FULL:
            raise
        for_good = number in _FOR_GOOD or isinstance(error, PermissionError | FileNotFoundError)
        raise (BadInput if for_good else HopsError)(
            f"the artifact store {root} cannot be used ({type(error).__name__}: {error}); correct the field 'store' "
            "of the connection of type hops, or '[hops] store', its 'storage_options', or the rights to that place"
        ) from error
