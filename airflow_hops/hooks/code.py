"""Fingerprints of code: what a step's cache key knows of the package and the user's own modules."""

from __future__ import annotations

import ast
import contextlib
import hashlib
import json
import os
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

import airflow_hops
from airflow_hops.contract.protocol import StepSpec
from airflow_hops.contract.run_record import FILE_PARAMS, UserCode
from airflow_hops.store.run_records import MAX_CODE_BYTES

ML_SIDE = (
    "artifacts.py",
    "contract",
    "data",
    "jobs.py",
    "processes",
    "schema_history.py",
    "server_address.py",
    "shared_places.py",
    "store",
    "runtime",
    "hops",
    "serving",
    "serving_api",
)
"""The modules and folders of this package that run in a step."""

_SCRIPT_PLACE = "(script)"
"""Where the folder of a script outside of the folders of user code lies in the user code that is kept."""

_MAGIC = re.compile(r"^([ \t]*)[%!?].*$", re.MULTILINE)
"""A line of a notebook's cell that is IPython's, not Python's."""


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


def user_code_fingerprint(spec: StepSpec) -> str:
    """The fingerprint of :func:`user_code`."""
    return _UserFiles(spec).fingerprint


def user_code(spec: StepSpec) -> UserCode:
    """The user code that a spec names as ``module:function``, and all that it imports, to be kept.

    A script, or the code of a notebook, and what the shipped source of a function imports count as well. Of a package
    all files count, since its modules may import each other and read what lies beside them. Imports are followed as far
    as they lead to the spec's code paths, or to a script's folder; a module that is imported by a computed name is not
    seen. A notebook with a cell that does not parse gets a fingerprint of its own each time.
    """
    found = _UserFiles(spec)
    files: dict[str, bytes] = {}
    left, left_out = MAX_CODE_BYTES, []
    for name, path in sorted(found.files.items()):
        content = path.read_bytes()
        if len(content) > left or name in found.links_out:
            left_out.append(name)
        else:
            files[name] = content
            left -= len(content)
    return UserCode(found.fingerprint, files, left_out, found.script)


class _UserFiles:
    """The files of user code that a spec leads to, by the paths that they are kept under."""

    def __init__(self, spec: StepSpec) -> None:
        self.files: dict[str, Path] = {}
        self.links_out: set[str] = set()
        self.script: str | None = None
        self._folders = {str(number): Path(os.path.normpath(folder)) for number, folder in enumerate(spec.code_paths)}
        waiting = {name.partition(".")[0] for name in _module_names([spec.entry, spec.params])}
        looked_at = {airflow_hops.__name__}  # package_fingerprint() has that
        found = self._script_sources(next((spec.params[name] for name in FILE_PARAMS if spec.params.get(name)), None))
        waiting |= {name for source in found for name in _imports(source)}
        while tops := waiting - looked_at:
            top = min(tops)
            looked_at.add(top)
            for place, folder in self._folders.items():
                for path in (folder / top, folder / f"{top}.py"):
                    if path.exists():
                        found.append(self._add(place, folder, path))
                        waiting |= _imported(path)
        self.fingerprint = hashlib.sha256("".join(found).encode()).hexdigest()

    def _add(self, place: str, folder: Path, path: Path) -> str:
        inside = (folder.resolve(), path.resolve())  # what is imported may be a link itself
        for file in map(Path, _files(path)):
            self.files[name := f"{place}/{file.relative_to(folder).as_posix()}"] = file
            if not any(file.resolve().is_relative_to(each) for each in inside):
                self.links_out.add(name)
        return _fingerprint(_files(path), folder)

    def _script_sources(self, script: Any) -> list[str]:
        """The sources of a script, those of the cells where it is a notebook; its folder is one of user code, too."""
        named = (Path(os.path.normpath(folder / str(script))) for folder in self._folders.values() if script)
        path = next((each for each in named if each.is_file()), None)
        if path is None:
            return []
        around = ((place, folder) for place, folder in self._folders.items() if path.is_relative_to(folder))
        place, folder = next(around, (_SCRIPT_PLACE, path.parent))
        kept = PurePosixPath(place) / path.relative_to(folder)
        self.script = kept.as_posix()
        self.files[self.script] = path
        self._folders[kept.parent.as_posix()] = path.parent
        text = path.read_text(errors="replace")
        if path.suffix != ".ipynb":
            return [text]
        try:
            cells = [_cell_source(cell) for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
            for cell in cells:
                ast.parse(cell)
            return cells
        except (ValueError, LookupError, TypeError, SyntaxError):
            # What it imports is not known, so that no earlier artifact can be its; the step says if it cannot run.
            return [text, secrets.token_hex()]


def _cell_source(cell: dict[str, Any]) -> str:
    """The source of a notebook's cell behind its tags, which mark parameters; without magics if it has any."""
    source = "".join(cell["source"])
    try:
        ast.parse(source)
        left_out = ""
    except SyntaxError:
        left_out = "".join(f"# {line.group().strip()}\n" for line in _MAGIC.finditer(source))
        source = _MAGIC.sub(r"\1pass", source)
    return f"# {json.dumps(cell.get('metadata', {}).get('tags', []))}\n{left_out}{source}\n"


def _imported(path: Path) -> set[str]:
    """Top-level names of the modules that a module, or any of a package, imports."""
    return {name for source in _files(path, ".py") for name in _imports(Path(source).read_bytes())}


def _imports(source: bytes | str) -> Iterable[str]:
    """Top-level names of the modules that a source imports."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return  # the step says so, if it imports it
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def _module_names(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        module, separator, function = value.partition(":")
        if separator and function.isidentifier() and all(part.isidentifier() for part in module.split(".")):
            yield module
    elif isinstance(value, dict):
        if {"source", "function", "wants_context"} <= value.keys():
            yield from _imports(value["source"])
        for item in value.values():
            yield from _module_names(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _module_names(item)


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
