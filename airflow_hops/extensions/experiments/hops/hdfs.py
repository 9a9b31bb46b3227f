"""Files of the project, in the store's file system.

Paths are absolute, beginning with :func:`project_path`; relative to it; or ``hdfs:///Projects/<name>/…`` with any name.
"""

from __future__ import annotations

import functools
import getpass
import inspect
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO, Any, TypeVar

from fsspec.implementations.local import LocalFileSystem

from airflow_hops.core.contract.artifacts import BadInput
from airflow_hops.core.processes.remote_files import without_markers
from airflow_hops.extensions.experiments.ml.project import Project

_R = TypeVar("_R")
_MODES = ("r", "w", "a", "rt", "wt", "at", "rb", "wb", "ab")


class FileSystem:
    """Access to the store's file system."""

    def __init__(self) -> None:
        self._project = Project.current()

    def open_file(self, /, path: str, flags: str = "r", **_: Any) -> IO[Any]:
        """Opens a file; in binary mode, like pydoop, unless the flags end in ``t``.

        Args:
            path: The file.
            flags: ``r``, ``w`` or ``a``.

        Raises:
            BadInput: the flags are invalid, or the path is not in the project.
            FileNotFoundError: the file does not exist.
        """
        if flags not in _MODES:
            raise BadInput(f"flags is {flags!r}, expected one of {', '.join(_MODES)}")
        files, whole = self._project.files, self._project.path(path)
        if flags[0] != "r":
            files.makedirs(whole.rpartition("/")[0], exist_ok=True)
        return files.open(whole, flags if len(flags) == 2 else f"{flags}b")  # type: ignore[no-any-return]

    def exists(self, path: str) -> bool:
        """Returns whether a file or folder exists."""
        return bool(self._project.files.exists(self._project.path(path)))

    def isdir(self, path: str) -> bool:
        """Returns whether the path is a folder."""
        return bool(self._project.files.isdir(self._project.path(path)))

    def isfile(self, path: str) -> bool:
        """Returns whether the path is a file."""
        return bool(self._project.files.isfile(self._project.path(path)))

    def list_directory(self, path: str, recursive: bool = False) -> list[str]:
        """Lists the addresses of a folder's entries, sorted; with ``recursive``, of subfolders' too.

        Raises:
            FileNotFoundError: the folder does not exist.
        """
        files, whole = self._project.files, self._project.path(path)
        listed = files.find(whole, withdirs=True, detail=True).values() if recursive else files.ls(whole, detail=True)
        return [each for each in self._addresses(e["name"] for e in without_markers(listed)) if each != whole]

    def glob(self, pattern: str, recursive: bool = False) -> list[str]:
        """Lists the addresses that match a shell pattern, sorted; with ``recursive``, also in subfolders."""
        folder, _, last = self._project.path(pattern).rpartition("/")
        return self._addresses(self._project.files.glob(f"{folder}/**/{last}" if recursive else f"{folder}/{last}"))

    def _addresses(self, result: Iterable[str]) -> list[str]:
        above = self._project.files._strip_protocol(self._project.root)
        return sorted(f"{self._project.root}{each.removeprefix(above)}" for each in result)

    def create_directory(self, path: str) -> None:
        """Creates a folder and its parents."""
        self._project.files.makedirs(self._project.path(path), exist_ok=True)

    def delete(self, path: str, recursive: bool = False) -> None:
        """Removes a file or folder, if it exists.

        Raises:
            BadInput: it is the project itself, or a folder that is not empty, without ``recursive``.
        """
        files, whole = self._project.files, self._project.path(path)
        if whole == self._project.path(""):
            raise BadInput(f"path {path!r} is the whole project, which is not deleted")
        if not files.exists(whole):
            return
        if files.isdir(whole) and files.ls(whole) and not recursive:
            raise BadInput(f"path {path!r} is a folder that is not empty; pass recursive=True")
        self._project.remove(whole)

    def copy(self, source: str, target: str, overwrite: bool = False) -> None:
        """Copies a file, or a folder with its contents.

        Args:
            source: The file or folder; not a pattern.
            target: Path of the copy, or an existing folder to copy a file into. Its parents are created.
            overwrite: Whether to replace an existing target.

        Raises:
            BadInput: the target exists, or one of the two is within the other.
            FileNotFoundError: the source does not exist.
        """
        files = self._project.files
        whole, there = self._project.path(source), self._free(source, target, overwrite)
        _copy(files, whole, files, there, files.cp_file)

    def rename(self, source: str, target: str, overwrite: bool = False) -> None:
        """Moves a file or folder; arguments and errors are those of :meth:`copy`."""
        files = self._project.files
        whole, there = self._project.path(source), self._free(source, target, overwrite)
        if self._project.store.is_local:
            files.makedirs(there.rpartition("/")[0], exist_ok=True)
            files.mv(whole, there)
        else:
            _copy(files, whole, files, there, files.cp_file)
            self._project.remove(whole)

    def _free(self, source: str, target: str, overwrite: bool) -> str:
        """Returns the absolute path of a target, after removing what is there."""
        files = self._project.files
        whole, there = self._project.path(source), self._project.path(target)
        _check_there(files, whole)
        if files.isfile(whole) and files.isdir(there):
            there = f"{there}/{whole.rpartition('/')[2]}"
        _check_apart(whole, there)
        if files.exists(there) and not overwrite:
            raise BadInput(f"{there} already exists; pass overwrite=True to replace it")
        self._project.remove(there)
        return there

    def put(self, local: str, folder: str, overwrite: bool = True) -> None:
        """Copies a local file or folder into a folder of the project, under its own name.

        Args:
            local: The file or folder.
            folder: The project's folder; it is created.
            overwrite: Whether to replace an existing target.

        Raises:
            BadInput: the target exists, and ``overwrite`` is False.
            FileNotFoundError: the local file or folder does not exist.
        """
        files, path = self._project.files, Path(local).absolute()
        whole, here = self._project.path("/".join(filter(None, [folder.rstrip("/"), path.name]))), LocalFileSystem()
        _check_there(here, str(path))
        _check_apart(str(path), whole)
        if files.exists(whole) and not overwrite:
            raise BadInput(f"{whole} already exists; pass overwrite=True to replace it")
        self._project.remove(whole)
        _copy(here, str(path), files, whole, files.put_file)

    def get(self, source: str, folder: str = "", overwrite: bool = True) -> str:
        """Copies a file or folder of the project into a local folder, replacing an existing copy.

        Args:
            source: The file or folder.
            folder: The local folder; it is created. By default the working directory.
            overwrite: Ignored, for compatibility.

        Returns:
            Local path of the copy.

        Raises:
            BadInput: the local folder is in the project.
            FileNotFoundError: the source does not exist.
        """
        files, whole, here = self._project.files, self._project.path(source), LocalFileSystem()
        path = str(Path(folder or ".").resolve() / whole.rpartition("/")[2])
        _check_there(files, whole)
        _check_apart(whole, path)
        if here.exists(path):
            here.rm(path, recursive=True)
        _copy(files, whole, here, path, files.get_file)
        return path


def _check_there(files: Any, path: str) -> None:
    if not files.exists(path):
        raise FileNotFoundError(f"{path}: no such file or folder")


def _check_apart(source: str, target: str) -> None:
    if f"{target}/".startswith(f"{source}/") or f"{source}/".startswith(f"{target}/"):
        raise BadInput(f"{source} cannot be copied to {target}: one is within the other")


def _copy(files: Any, source: str, others: Any, target: str, copy_file: Callable[[str, str], Any]) -> None:
    """Copies to a target that does not exist, file by file, because fsspec's ``copy`` takes names for patterns."""
    above = files._strip_protocol(source)
    for entry in without_markers(files.find(source, withdirs=True, detail=True).values()):
        path = entry["name"]
        there = f"{target}{path.removeprefix(above)}"
        if entry["type"] == "directory":
            others.makedirs(there, exist_ok=True)
        else:
            others.makedirs(there.rpartition("/")[0], exist_ok=True)
            copy_file(path, there)


def get_fs() -> FileSystem:
    """Returns the file system.

    Raises:
        BadInput: this process is not a step, and no store is configured.
    """
    return FileSystem()


get = get_fs


def project_path(project: str | None = None) -> str:
    """Returns the address of the project, the store's root, without a trailing slash; ``project`` is ignored."""
    return Project.current().root


def project_user() -> str:
    """Returns the project's name and the user that runs this program, joined by ``__``."""
    return f"{Project.current().spec.producer.dag_id}__{getpass.getuser()}"


def _function(method: Callable[..., _R], *names: str) -> Callable[..., _R]:
    """Returns a method as a function with hops-util-py's argument names; a project's name may follow."""
    own = list(inspect.signature(method).parameters)[1:]

    @functools.wraps(method)
    def call(*args: Any, project: str | None = None, **kwargs: Any) -> _R:
        renamed = {own[names.index(name)] if name in names else name: value for name, value in kwargs.items()}
        return method(get_fs(), *args[: len(own) if len(args) == len(own) + 1 else None], **renamed)

    return call


exists = _function(FileSystem.exists, "hdfs_path")
isdir = _function(FileSystem.isdir, "hdfs_path")
isfile = _function(FileSystem.isfile, "hdfs_path")
ls = _function(FileSystem.list_directory, "hdfs_path")
glob = _function(FileSystem.glob, "hdfs_path")
mkdir = _function(FileSystem.create_directory, "hdfs_path")
delete = _function(FileSystem.delete, "hdfs_path")
cp = _function(FileSystem.copy, "src_hdfs_path", "dest_hdfs_path")
rename = move = _function(FileSystem.rename, "src", "dest")
copy_to_hdfs = _function(FileSystem.put, "local_path", "relative_hdfs_path")
copy_to_local = _function(FileSystem.get, "hdfs_path", "local_path")


def rmr(hdfs_path: str, project: str | None = None) -> None:
    """Removes a file, or a folder with its contents."""
    delete(hdfs_path, recursive=True)


def open_file(hdfs_path: str, project: str | None = None, flags: str | None = None, buff_size: int = 0) -> IO[Any]:
    """Opens a file, as :meth:`FileSystem.open_file` does.

    Args:
        hdfs_path: The file.
        project: Ignored, unless it is a mode: then it counts as ``flags``, as in ``open``.
        flags: ``r`` (the default), ``w`` or ``a``.
        buff_size: Ignored, for compatibility.
    """
    return get_fs().open_file(hdfs_path, flags or (project if project in _MODES else "r"))


def load(hdfs_path: str) -> bytes:
    """Returns the content of a file."""
    with open_file(hdfs_path, flags="rb") as file:
        return bytes(file.read())


def dump(data: str | bytes, hdfs_path: str) -> None:
    """Writes a file, and creates its folder."""
    with open_file(hdfs_path, flags="wb") as file:
        file.write(data.encode() if isinstance(data, str) else data)
