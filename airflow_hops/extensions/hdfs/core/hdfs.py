"""HDFS for fsspec without a JVM: hdfs-native, with Python's own errors, buffered streams and whole files."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import io
import json
import os
import re
import shutil
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from datetime import UTC, datetime
from typing import Any

from fsspec import AbstractFileSystem
from fsspec.implementations.webhdfs import WebHDFS
from hdfs_native import Client, WriteOptions
from hdfs_native.fsspec import HdfsFileSystem as NativeFileSystem

from airflow_hops.extensions.hdfs.core.renaming import pipe_by_renaming

_BUFFER_BYTES = 1 << 20  # each read is a new request to a data node
_ERROR = re.compile(r'\w+\("(?:(?:[\w.$]+\.)?(\w+)", ")?(.*)"\)', re.DOTALL)
_NUMBERS = {
    "AccessControlException": errno.EACCES,
    "DSQuotaExceededException": errno.EDQUOT,
    "NSQuotaExceededException": errno.EDQUOT,
    "SafeModeException": errno.EBUSY,
}
# By default it is 15, and a name node that refuses connections is reported after 3 minutes.
_DEFAULTS = {"dfs.client.failover.max.attempts": "4"}
_CONNECTIONS_S = 3.1
CONTACT_S = 60.0
"""Limit of a name node's first answer; one that refuses connections is reported earlier."""
_forked_s = -_CONNECTIONS_S


class HdfsFileSystem(NativeFileSystem):
    """Files in HDFS.

    Args:
        host: Name node, or a name service of ``hdfs-site.xml``.
        port: Port of the name node; None for a name service.
        **storage_options: Hadoop's settings, such as ``dfs.client.use.datanode.hostname``.
    """

    writes_atomically = True

    def __init__(self, host: str | None = None, port: int | None = None, **storage_options: object) -> None:
        AbstractFileSystem.__init__(self, host, port, **storage_options)  # the parent's constructor would make a client
        self.host, self.port = host, port
        settings = {k: v if isinstance(v, str) else json.dumps(v) for k, v in {**_DEFAULTS, **storage_options}.items()}
        with self._errors("/"):
            self.client = _client(os.getpid(), self.unstrip_protocol("/").rstrip("/"), tuple(sorted(settings.items())))

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        # Names may contain '?' and '#', which would end the path of a URL.
        return re.sub("^hdfs://[^/]*", "", os.fspath(path)).rstrip("/") or cls.root_marker

    def info(self, path: str, **options: object) -> Any:
        """Returns the facts of a file or folder. Raises FileNotFoundError if it does not exist."""
        with self._errors(path):
            return super().info(path, **options)

    def ls(self, path: str, detail: bool = True, **options: object) -> Any:
        """Lists a folder's entries. Raises FileNotFoundError if it does not exist."""
        with self._errors(path):
            return super().ls(path, detail, **options)

    def walk(self, path: str, maxdepth: int | None = None, topdown: bool = True, **options: object) -> Iterator[Any]:
        """Walks a folder; unlike fsspec, raises an error for a folder that cannot be listed."""
        yield from super().walk(path, maxdepth, topdown, **{"on_error": _raise_unless_missing, **options})

    def mkdir(self, path: str, create_parents: bool = True, **options: object) -> None:
        """Creates a folder and its parents, if it does not exist."""
        with self._errors(path):
            super().mkdir(path, create_parents, **options)

    def mv(self, path1: str, path2: str, overwrite: bool = True, **options: object) -> None:
        """Renames a file or folder atomically. Raises FileExistsError if the target exists, without ``overwrite``."""
        self.mkdir(path2.rpartition("/")[0])  # as in object stores, which have no folders
        with self._errors(path2):
            super().mv(path1, path2, overwrite=overwrite)

    def rm(self, path: str, recursive: bool = False, maxdepth: int | None = None) -> None:
        """Removes a file or folder, if it exists."""
        with self._errors(path):
            super().rm(path, recursive, maxdepth)

    def cp_file(self, path1: str, path2: str, **options: object) -> None:
        """Copies a file."""
        with self.open(path1) as source, self.open(path2, "wb") as target:
            shutil.copyfileobj(source, target, _BUFFER_BYTES)

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: object) -> None:
        """Writes a file atomically. Raises FileExistsError if it exists in mode ``create``."""
        pipe_by_renaming(self, path, value, overwrite=mode != "create")

    def _open(self, path: str, mode: str = "rb", **options: object) -> Any:
        with self._errors(path):
            if mode == "rb":
                return io.BufferedReader(_Reader(self, path), _BUFFER_BYTES)
            if mode == "wb":
                return _Writer(self, path)
            return super()._open(path, mode, **options)

    @contextlib.contextmanager
    def _errors(self, path: str) -> Iterator[None]:
        """Turns errors of Hadoop into errors of Python, with an address and without Java's stack."""
        try:
            yield
        except (OSError, RuntimeError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise
            name, message = match.groups() if (match := _ERROR.match(str(error))) else ("", str(error))
            # Java's stack follows, or descriptions of data nodes.
            message = re.split(r"\\n|\n|: \[", message)[0].replace('\\"', '"')
            number = _NUMBERS.get(name, errno.EIO)
            if isinstance(error, FileNotFoundError):
                number = errno.ENOENT
            elif isinstance(error, FileExistsError):
                number = errno.EEXIST
            elif "could only be replicated to 0 nodes" in message and "There are 0 datanode" not in message:
                number = errno.ENOSPC
            elif "Connection refused" in message:
                number, message = errno.ECONNREFUSED, "the name node or a data node refuses connections"
            raise OSError(number, message, self.unstrip_protocol(path)) from None


class _Reader(io.RawIOBase):
    def __init__(self, fs: HdfsFileSystem, path: str) -> None:
        self._errors = functools.partial(fs._errors, path)
        self._inner = fs.client.inner.read(path)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return int(self._inner.tell())

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        size: int = self._inner.file_length()
        place = {os.SEEK_SET: 0, os.SEEK_CUR: self.tell(), os.SEEK_END: size}[whence] + offset
        self._inner.seek(min(place, size))
        return place

    def readinto(self, buffer: Any) -> int:
        with self._errors():
            content = self._inner.read(len(buffer))
        buffer[: len(content)] = content
        return len(content)

    def readall(self) -> bytes:
        with self._errors():
            return bytes(self._inner.read(-1))


class _Writer(io.RawIOBase):
    """A file that is removed if writing fails, instead of being completed."""

    def __init__(self, fs: HdfsFileSystem, path: str) -> None:
        self._fs, self._path = fs, path
        self._inner: Any = None  # Python closes it also if the next line fails
        self._inner = fs.client.inner.create(path, WriteOptions(overwrite=True))

    def writable(self) -> bool:
        return True

    def write(self, content: object) -> int:
        with self._attempt():
            return int(self._inner.write(content))

    def close(self) -> None:
        if not self.closed:
            super().close()
            if self._inner is not None:
                with self._attempt():
                    self._inner.close()

    @contextlib.contextmanager
    def _attempt(self) -> Iterator[None]:
        try:
            with self._fs._errors(self._path):
                yield
        except OSError:
            self._abandon()
            raise

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is not None and not self.closed:
            self._abandon()
        self.close()

    def _abandon(self) -> None:
        self._inner = None
        with contextlib.suppress(OSError):
            self._fs.rm(self._path)


@functools.cache
def _client(pid: int, url: str, settings: tuple[tuple[str, str], ...]) -> Client:
    """Returns the process's client of a name node."""
    # hdfs-native 0.14: reuses connections to data nodes for 3 s; in a fork it would wait for those of the parent for
    # ever.
    time.sleep(max(0.0, _forked_s + _CONNECTIONS_S - time.monotonic()))
    try:
        client = Client(url, dict(settings))
    except RuntimeError as error:
        raise ValueError(f"{error}; expected hdfs://HOST:PORT/, or a name service of hdfs-site.xml") from None
    _await_answer(client, url)
    # Never freed, since a fork would wait for its threads, which it does not have.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(client.inner))
    return client


def _await_answer(client: Client, url: str) -> None:
    """Asks the name node; raises TimeoutError if it does not answer, for which hdfs-native would wait for ever."""
    answer = Future[None]()

    def ask() -> None:
        try:
            client.get_file_info("/")
            answer.set_result(None)
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=ask, name="first contact", daemon=True).start()
    try:
        answer.result(CONTACT_S)
    except TimeoutError as error:
        if answer.done():
            raise
        reason = f"the name node does not answer within {CONTACT_S:g} s; check that it is well, and its address"
        raise TimeoutError(errno.ETIMEDOUT, reason, url) from error


def _after_fork() -> None:
    global _forked_s
    if _client.cache_info().currsize:
        _forked_s = time.monotonic()


os.register_at_fork(after_in_child=_after_fork)


def _raise_unless_missing(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


class WebHdfsFileSystem(WebHDFS):
    """Files in HDFS; the arguments are those of fsspec's own class, whose renames ignore that the target exists."""

    writes_atomically = True

    def mv(self, path1: str, path2: str, overwrite: bool = True, **options: object) -> None:
        """Renames a file or folder atomically. Raises FileExistsError if the target exists, without ``overwrite``."""
        self.makedirs(self._parent(path2), exist_ok=True)  # as in object stores, which have no folders
        target, option = self._strip_protocol(path2), "OVERWRITE" if overwrite else "NONE"
        try:
            self._call("RENAME", method="put", path=path1, destination=target, renameoptions=option)
        except RuntimeError as error:
            if "already exists" in str(error):
                raise FileExistsError(errno.EEXIST, str(error), path2) from error
            raise

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: object) -> None:
        """Writes a file atomically. Raises FileExistsError if it exists in mode ``create``."""
        pipe_by_renaming(self, path, value, overwrite=mode != "create")

    def modified(self, path: str) -> datetime:
        """Returns the time of a file's last change."""
        return datetime.fromtimestamp(self.info(path)["modificationTime"] / 1000, UTC)
