"""Atomic writes by a rename."""

from __future__ import annotations

import contextlib
import secrets
from typing import Any


def pipe_by_renaming(fs: Any, path: str, value: bytes, *, overwrite: bool) -> None:
    """Writes a file atomically on a file system whose ``mv`` is atomic; ``mv`` raises if it may not overwrite."""
    folder, _, name = fs._strip_protocol(path).rpartition("/")
    temporary = f"{folder}/.{name}.{secrets.token_hex(4)}"
    with fs.open(temporary, "wb") as stream:
        stream.write(value)
    try:
        fs.mv(temporary, path, overwrite=overwrite)
    except BaseException:
        with contextlib.suppress(Exception):
            fs.rm(temporary)
        raise
