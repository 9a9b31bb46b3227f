"""Files of the project: the store's file system, wherever it is.

Paths are whole, as :func:`project_path` begins them; relative to it; or ``hdfs:///Projects/<name>/…``, whatever the
name.
"""

from __future__ import annotations

import functools
import getpass
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO, Any, Concatenate, ParamSpec, TypeVar

from airflow_hops.contract.artifacts import BadInput
from airflow_hops.runtime.experiments.project import Project

_P = ParamSpec("_P")
_R = TypeVar("_R")
_MODES = ("r", "w", "a", "rt", "wt", "at", "rb", "wb", "ab")


class FileSystem:
    """A handle of the store's file system."""

    def __init__(self) -> None:
        self._project = Project.current()

    def open_file(self, /, path: str, flags: str = "r", **_: Any) -> IO[Any]:
        """Opens a file; of bytes, as pydoop does, unless the flags end in ``t``.

        Args:
            path: The file.
            flags: ``r``, ``w`` or ``a``.

        Raises:
            BadInput: the flags are others, or the path is not in the project.
            FileNotFoundError: there is no such file.
        """
        if flags not in _MODES:
            raise BadInput(f"flags is {flags!r}, expected one of {', '.join(_MODES)}")
        files, whole = self._project.files, self._project.path(path)
        if flags[0] != "r":
            files.makedirs(whole.rpartition("/")[0], exist_ok=True)
        return files.open(whole, flags if len(flags) == 2 else f"{flags}b")  # type: ignore[no-any-return]

    def exists(self, path: str) -> bool:
        """Whether there is a file or folder."""
        return bool(self._project.files.exists(self._project.path(path)))

    def isdir(self, path: str) -> bool:
        """Whether there is a folder."""
        return bool(self._project.files.isdir(self._project.path(path)))

    def isfile(self, path: str) -> bool:
        """Whether there is a file."""
        return bool(self._project.files.isfile(self._project.path(path)))

    def list_directory(self, path: str, recursive: bool = False) -> list[str]:
        """Addresses of what is in a folder, sorted.

        Args:
            path: The folder.
            recursive: Whether that of folders in it is wanted, too.

        Raises:
            FileNotFoundError: there is no such folder.
        """
        files, whole = self._project.files, self._project.path(path)
        found = files.find(whole, withdirs=True) if recursive else files.ls(whole, detail=False)
        return [each for each in self._addresses(found) if each != whole]

    def glob(self, pattern: str) -> list[str]:
        """Addresses that match a shell's pattern, sorted."""
        files = self._project.files
        return self._addresses(files.glob(self._project.path(pattern)))

    def _addresses(self, found: Iterable[str]) -> list[str]:
        above = self._project.files._strip_protocol(self._project.root)
        return sorted(f"{self._project.root}{each.removeprefix(above)}" for each in found)

    def create_directory(self, path: str) -> None:
        """Makes a folder, with those above it."""
        self._project.files.makedirs(self._project.path(path), exist_ok=True)

    def delete(self, path: str, recursive: bool = False) -> None:
        """Removes a file or folder; nothing where there is none.

        Raises:
            BadInput: it is the project itself, or a folder that has something in it, without ``recursive``.
        """
        files, whole = self._project.files, self._project.path(path)
        if whole == self._project.path(""):
            raise BadInput(f"path {path!r} is the whole project, which is not deleted")
        if not files.exists(whole):
            return
        if files.isdir(whole) and files.ls(whole) and not recursive:
            raise BadInput(f"path {path!r} is a folder with something in it; say recursive=True")
        files.rm(whole, recursive=recursive)

    def copy(self, source: str, target: str) -> None:
        """Copies a file, or a folder with all in it."""
        self._project.files.copy(self._project.path(source), self._project.path(target), recursive=True)

    def rename(self, source: str, target: str) -> None:
        """Moves a file or folder."""
        self._project.files.mv(self._project.path(source), self._project.path(target), recursive=True)

    def put(self, local: str, target: str) -> None:
        """Copies a local file or folder into the project."""
        self._project.files.put(local, self._project.path(target), recursive=True)

    def get(self, source: str, local: str) -> None:
        """Copies a file or folder of the project to a local path."""
        self._project.files.get(self._project.path(source), local, recursive=True)


def get_fs() -> FileSystem:
    """The file system.

    Raises:
        BadInput: this is no step, and no store is named.
    """
    return FileSystem()


get = get_fs


def project_path(project: str | None = None) -> str:
    """The address of the project, the store's root, without a slash at its end; any name means this one."""
    return Project.current().root


def project_name() -> str:
    """The project's name: the DAG's."""
    return Project.current().spec.producer.dag_id


def project_user() -> str:
    """Who runs this."""
    return f"{project_name()}__{getpass.getuser()}"


def _function(method: Callable[Concatenate[FileSystem, _P], _R]) -> Callable[_P, _R]:
    """A method of the file system as a function."""

    @functools.wraps(method)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        return method(get_fs(), *args, **kwargs)

    return call


open_file = _function(FileSystem.open_file)
exists = _function(FileSystem.exists)
isdir = _function(FileSystem.isdir)
isfile = _function(FileSystem.isfile)
ls = _function(FileSystem.list_directory)
glob = _function(FileSystem.glob)
mkdir = _function(FileSystem.create_directory)
delete = _function(FileSystem.delete)
cp = _function(FileSystem.copy)
rename = move = _function(FileSystem.rename)


def load(path: str) -> bytes:
    """The content of a file."""
    with open_file(path, "rb") as file:
        return bytes(file.read())


def dump(data: str | bytes, path: str) -> None:
    """Writes a file."""
    with open_file(path, "wb") as file:
        file.write(data.encode() if isinstance(data, str) else data)


def copy_to_hdfs(local_path: str, relative_path: str) -> None:
    """Copies a local file or folder into a folder of the project, under its own name."""
    get_fs().put(local_path, f"{relative_path.rstrip('/')}/{Path(local_path).name}")


def copy_to_local(path: str, local_path: str = "") -> str:
    """Copies a file or folder of the project into a local folder.

    Returns:
        Its path there.
    """
    target = Path(local_path or ".").resolve() / path.rstrip("/").rpartition("/")[2]
    get_fs().get(path, str(target))
    return str(target)
