"""Files of the project, in the store's file system.

Paths are absolute, beginning with :func:`project_path`; relative to it; or ``hdfs:///Projects/<name>/…`` with any name.
They are patterns only for :func:`glob`. The argument ``project`` is ignored: the project is the store.
"""

from __future__ import annotations

import getpass
import importlib
import logging
import os
import stat as modes
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

from fsspec.implementations.local import LocalFileSystem

from airflow_hops.core.errors import BadInput
from airflow_hops.core.names import check_known
from airflow_hops.core.processes.remote_files import without_markers
from airflow_hops.extensions.experiments.hops import absent
from airflow_hops.extensions.experiments.ml.project import Project, remove

__getattr__ = absent.calls_of("hdfs")

_MODES = ("r", "w", "a", "rt", "wt", "at", "rb", "wb", "ab")


def project_path(project: str | None = None, exclude_nn_addr: bool = False) -> str:
    """Returns the address of the project, the store's root, with a trailing slash: names of files may follow."""
    return f"{Project.current().root}/"


def project_name() -> str:
    """Returns the project's name: the DAG's, or ``script`` outside of a step."""
    return Project.current().spec.producer.dag_id or "script"


def project_user() -> str:
    """Returns the project's name and the user that runs this program, joined by ``__``."""
    return f"{project_name()}__{getpass.getuser()}"


def abs_path(hdfs_path: str) -> str:
    """Returns the whole address of a file or folder."""
    return Project.current().path(hdfs_path)


def get_plain_path(abs_path: str) -> str:
    """Returns an address without its scheme and host."""
    scheme, _, rest = abs_path.rpartition("://")
    return f"/{rest.partition('/')[2]}" if scheme and scheme != "file" else rest


def log(string: object) -> None:
    """Writes a line into the log of the program."""
    logging.getLogger(__name__).info("%s", string)


def close() -> None:
    """Does nothing, for compatibility: there is no connection to close."""


def open_file(hdfs_path: str, project: str | None = None, flags: str | None = None, buff_size: int = 0) -> IO[Any]:
    """Opens a file; in binary mode, like pydoop, unless the flags end in ``t``.

    Args:
        hdfs_path: The file.
        project: Ignored, unless it is a mode: then it counts as ``flags``, as in ``open``.
        flags: ``r`` (the default), ``w`` or ``a``; missing folders are created.
        buff_size: Ignored, for compatibility.

    Raises:
        BadInput: the flags are invalid, or the path is not in the project.
        FileNotFoundError: the file does not exist.
    """
    mode = flags or (project if project in _MODES else None) or "r"
    check_known("flags", mode, _MODES)
    files, whole = _find(hdfs_path)
    if mode[0] != "r":
        files.makedirs(whole.rpartition("/")[0], exist_ok=True)
    return files.open(whole, mode if len(mode) == 2 else f"{mode}b")  # type: ignore[no-any-return]


def load(hdfs_path: str) -> bytes:
    """Returns the content of a file."""
    with open_file(hdfs_path, flags="rb") as file:
        return bytes(file.read())


def dump(data: str | bytes, hdfs_path: str) -> None:
    """Writes a file, and creates its folder."""
    with open_file(hdfs_path, flags="wb") as file:
        file.write(data.encode() if isinstance(data, str) else data)


def exists(hdfs_path: str, project: str | None = None) -> bool:
    """Returns whether a file or folder exists."""
    files, whole = _find(hdfs_path)
    return bool(files.exists(whole))


def isdir(hdfs_path: str, project: str | None = None) -> bool:
    """Returns whether the path is a folder."""
    files, whole = _find(hdfs_path)
    return bool(files.isdir(whole))


def isfile(hdfs_path: str, project: str | None = None) -> bool:
    """Returns whether the path is a file."""
    files, whole = _find(hdfs_path)
    return bool(files.isfile(whole))


def ls(hdfs_path: str, recursive: bool = False, exclude_nn_addr: bool = False, project: str | None = None) -> list[str]:
    """Lists the addresses of a folder's entries, sorted; with ``recursive``, of subfolders' too.

    Raises:
        FileNotFoundError: the folder does not exist.
    """
    return [entry["name"] for entry in lsl(hdfs_path, recursive)]


def lsl(hdfs_path: str, recursive: bool = False, project: str | None = None) -> list[dict[str, Any]]:
    """Lists the entries of a folder with ``name``, ``kind`` (``file`` or ``directory``) and ``size`` in bytes.

    Raises:
        FileNotFoundError: the folder does not exist.
    """
    files, whole = _find(hdfs_path)
    listed = files.find(whole, withdirs=True, detail=True).values() if recursive else files.ls(whole, detail=True)
    entries = {_addresses([entry["name"]])[0]: entry for entry in without_markers(listed)}
    return [
        {"name": name, "path": name, "kind": entry["type"], "size": entry["size"] or 0}
        for name, entry in sorted(entries.items())
        if name != whole
    ]


def stat(hdfs_path: str) -> os.stat_result:
    """Returns size in bytes and, if the store has them, mode and times of a file or folder, as ``os.stat`` does.

    Raises:
        FileNotFoundError: it does not exist.
    """
    files, whole = _find(hdfs_path)
    if isinstance(files, LocalFileSystem):
        return Path(whole).stat()
    entry = files.info(whole)
    mode = modes.S_IFDIR if entry["type"] == "directory" else modes.S_IFREG
    return os.stat_result((mode, 0, 0, 1, 0, 0, entry["size"] or 0, 0, 0, 0))


def glob(hdfs_path: str, recursive: bool = False, project: str | None = None) -> list[str]:
    """Lists the addresses that match a shell pattern, sorted; with ``recursive``, also in subfolders."""
    files, whole = _find(hdfs_path)
    folder, _, last = whole.rpartition("/")
    return _addresses(files.glob(f"{folder}/**/{last}" if recursive else f"{folder}/{last}"))


def mkdir(hdfs_path: str, project: str | None = None) -> None:
    """Creates a folder and its parents."""
    files, whole = _find(hdfs_path)
    files.makedirs(whole, exist_ok=True)


def delete(hdfs_path: str, recursive: bool = False, project: str | None = None) -> None:
    """Removes a file or folder, if it exists.

    Raises:
        BadInput: it is the project itself, or a folder that is not empty, without ``recursive``.
    """
    files, whole = _find(hdfs_path)
    if whole == Project.current().path(""):
        raise BadInput(f"path {hdfs_path!r} is the project's root, which cannot be deleted")
    if not recursive and files.isdir(whole) and files.ls(whole):
        raise BadInput(f"path {hdfs_path!r} is a folder that is not empty; pass recursive=True")
    remove(files, whole)


def rmr(hdfs_path: str, project: str | None = None) -> None:
    """Removes a file, or a folder with its contents."""
    delete(hdfs_path, recursive=True)


def cp(src_hdfs_path: str, dest_hdfs_path: str, overwrite: bool = False, project: str | None = None) -> None:
    """Copies a file, or a folder with its contents.

    Args:
        src_hdfs_path: The file or folder.
        dest_hdfs_path: Path of the copy, or an existing folder to copy a file into. Its parents are created.
        overwrite: Whether to replace an existing target.
        project: Ignored.

    Raises:
        BadInput: the target exists, or one of the two is within the other.
        FileNotFoundError: the source does not exist.
    """
    (files, source), target = _find(src_hdfs_path), _target(src_hdfs_path, dest_hdfs_path)
    _make_room(files, source, files, target, overwrite=overwrite)
    _copy(files, source, files, target, files.cp_file)


def rename(src: str, dest: str, overwrite: bool = False, project: str | None = None) -> None:
    """Moves a file or folder; arguments and errors are those of :func:`cp`."""
    (files, source), target = _find(src), _target(src, dest)
    _make_room(files, source, files, target, overwrite=overwrite)
    if isinstance(files, LocalFileSystem):
        files.makedirs(target.rpartition("/")[0], exist_ok=True)
        files.mv(source, target)
    else:
        _copy(files, source, files, target, files.cp_file)
        remove(files, source)


move = rename


def copy_to_hdfs(local_path: str, relative_hdfs_path: str, overwrite: bool = True, project: str | None = None) -> None:
    """Copies a local file or folder into a folder of the project, which is created, under its own name.

    Raises:
        BadInput: the target exists, and ``overwrite`` is False.
        FileNotFoundError: the local file or folder does not exist.
    """
    source = Path(local_path).absolute()
    files, target = _find("/".join(filter(None, [relative_hdfs_path.rstrip("/"), source.name])))
    _make_room(LocalFileSystem(), str(source), files, target, overwrite=overwrite)
    _copy(LocalFileSystem(), str(source), files, target, files.put_file)


def copy_to_local(hdfs_path: str, local_path: str = "", overwrite: bool = True, project: str | None = None) -> str:
    """Copies a file or folder of the project into a local folder, and returns the path of the copy.

    Args:
        hdfs_path: The file or folder.
        local_path: The local folder; it is created. By default the working directory.
        overwrite: Ignored, for compatibility: an existing copy is replaced.
        project: Ignored.

    Raises:
        BadInput: the local folder is in the project.
        FileNotFoundError: the source does not exist.
    """
    files, source = _find(hdfs_path)
    target = str(Path(local_path or ".").resolve() / source.rpartition("/")[2])
    _make_room(files, source, LocalFileSystem(), target, overwrite=True)
    _copy(files, source, LocalFileSystem(), target, files.get_file)
    return target


def add_module(hdfs_path: str, project: str | None = None) -> str:
    """Copies a module of Python to this machine, where it can then be imported; returns the path of the copy.

    Raises:
        BadInput: it is not a file ``.py``.
        FileNotFoundError: it does not exist.
    """
    if not hdfs_path.endswith(".py"):
        raise BadInput(f"path {hdfs_path!r}; expected a file .py: save a notebook as a script first")
    path = copy_to_local(hdfs_path, "localized_deps")
    if (folder := str(Path(path).parent)) not in sys.path:
        sys.path.append(folder)
    importlib.invalidate_caches()
    sys.modules.pop(Path(path).stem, None)  # an older copy
    return path


class _FileSystem(SimpleNamespace):
    """Handle with pydoop's methods; one that is not here says what to use instead."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return absent.Absent(f"get_fs().{name}", "the functions of hops.hdfs, such as stat and lsl")


def get_fs() -> SimpleNamespace:
    """Returns the file system: the functions of this module, under the names of pydoop's methods.

    Raises:
        BadInput: this process is not a step, and no store is configured.
    """
    Project.current()
    plain = (open_file, exists, isdir, isfile, glob, delete, rename, move, close)
    return _FileSystem(**{each.__name__: each for each in plain}, list_directory=lsl, create_directory=mkdir, copy=cp)


get = get_fs


def _find(path: str) -> tuple[Any, str]:
    """Returns the project's file system, and the whole address of a path."""
    project = Project.current()
    return project.files, project.path(path)


def _addresses(names: Iterable[str]) -> list[str]:
    project = Project.current()
    above = project.files._strip_protocol(project.root)
    return sorted(f"{project.root}{each.removeprefix(above)}" for each in names)


def _target(source: str, target: str) -> str:
    """Returns the whole address of a copy: within the target, if that is a folder and the source is a file."""
    (files, whole), (_, there) = _find(source), _find(target)
    return f"{there}/{whole.rpartition('/')[2]}" if files.isfile(whole) and files.isdir(there) else there


def _make_room(files: Any, source: str, others: Any, target: str, *, overwrite: bool) -> None:
    """Checks that a copy is possible, and removes the existing target."""
    if not files.exists(source):
        raise FileNotFoundError(f"{source}: no such file or folder")
    if f"{target}/".startswith(f"{source}/") or f"{source}/".startswith(f"{target}/"):
        raise BadInput(f"{source} cannot be copied to {target}: one is within the other")
    if others.exists(target) and not overwrite:
        raise BadInput(f"{target} already exists; pass overwrite=True to replace it")
    remove(others, target)


def _copy(files: Any, source: str, others: Any, target: str, copy_file: Callable[[str, str], object]) -> None:
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
