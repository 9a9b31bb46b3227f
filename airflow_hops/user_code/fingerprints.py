"""Fingerprints of code: what a step's cache key knows of the package and the user's own modules."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import airflow_hops
from airflow_hops.core.contract.protocol import StepSpec
from airflow_hops.core.contract.run_record import UserCode
from airflow_hops.core.store.run_records import MAX_CODE_BYTES

if TYPE_CHECKING:
    from airflow_hops.user_code.files import UserFiles

ML_SIDE = ("core", "hops", "ml", "serving")
"""The modules and folders of this package that run in a step."""


@dataclass(frozen=True)
class _PackageSources:
    process: int
    states: list[tuple[str, int, int]]
    fingerprint: str


_known: _PackageSources | None = None


def package_fingerprint() -> str:
    """SHA-256 (hex) of the ML side's sources, as each process finds them first.

    A fork takes over what its parent has read if no source has changed since, by inodes and times of change: a task's
    process has then 5 ms to look where reading takes 18.
    """
    global _known
    if _known is None or _known.process != os.getpid():
        package = Path(airflow_hops.__file__).parent
        sources = [source for name in ML_SIDE for source in _files(package / name, ".py")]
        states = [(source, status.st_ino, status.st_ctime_ns) for source in sources for status in [Path(source).stat()]]
        if _known is not None and _known.states == states:
            _known = replace(_known, process=os.getpid())
        else:
            _known = _PackageSources(os.getpid(), states, _fingerprint(sources, package))
    return _known.fingerprint


def user_code_fingerprint(spec: StepSpec, runtime: Path | None = None) -> str:
    """The fingerprint of :func:`user_code`."""
    return find_user_files(spec, runtime).fingerprint


def find_user_files(spec: StepSpec, runtime: Path | None = None) -> UserFiles:
    """The files of user code that a spec leads to.

    Args:
        spec: The step.
        runtime: Folder of the environment that it runs in; None where only what lies beside the DAG file counts.
    """
    from airflow_hops.user_code.files import UserFiles
    from airflow_hops.user_code.libraries import Libraries

    return UserFiles(spec, Libraries(runtime) if runtime is not None else None)


def user_code(spec: StepSpec, runtime: Path | None = None) -> UserCode:
    """The user code of a spec, to be kept: :class:`~airflow_hops.user_code.files.UserFiles` with their contents.

    Args:
        spec: The step.
        runtime: As in :func:`find_user_files`.
    """
    from airflow_hops.user_code.files import read_file

    found = find_user_files(spec, runtime)
    files: dict[str, bytes] = {}
    left, left_out = MAX_CODE_BYTES, []
    for name, file in sorted(found.files.items()):
        content = None if found.is_link_out(name) else read_file(file, left)
        if content is None:
            left_out.append(name)
        else:
            files[name] = content
            left -= len(content)
    return UserCode(found.fingerprint, files, left_out, found.script, found.folders, found.unknown)


def _fingerprint(sources: Iterable[str], root: Path) -> str:
    digest = hashlib.sha256()
    for source in sources:
        digest.update(f"{source.removeprefix(f'{root}/')}\0".encode())
        digest.update(Path(source).read_bytes())
    return digest.hexdigest()


def _files(path: Path, suffix: str = "") -> list[str]:
    """A file, or the files below a folder, less bytecode and what is hidden; in the order of their parts."""
    # Texts, since each task looks at all files of this package, for which paths take three times as long.
    if path.is_file():
        return [str(path)]
    return sorted(_files_below(str(path), suffix), key=lambda file: file.split("/"))


def _files_below(folder: str, suffix: str) -> Iterable[str]:
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(".") or entry.name == "__pycache__":
                continue
            if entry.is_dir(follow_symlinks=False):
                yield from _files_below(entry.path, suffix)
            elif entry.name.endswith(suffix) and entry.is_file():
                yield entry.path
