"""Finds the files of user code that a step depends on, for its cache key and its record."""

from __future__ import annotations

import fnmatch
import hashlib
import os
import secrets
import sys
import zipfile
from collections.abc import Iterator, Sequence
from importlib.resources.abc import Traversable
from pathlib import Path, PurePosixPath
from typing import Any

import airflow_hops
from airflow_hops.core.steps.protocol import StepSpec
from airflow_hops.core.steps.run_record import FILE_PARAMS, FUNCTION_PARAMS
from airflow_hops.runner.user_code.ignore_rules import IgnoreRules
from airflow_hops.runner.user_code.libraries import Libraries
from airflow_hops.runner.user_code.source_references import References, module_name, notebook_cells, references

_SCRIPT_PLACE = "(script)"
"""Folder, in the recorded user code, of a script outside of the folders of user code."""

_MAX_FILES = 20_000
_MAX_BYTES = 256 << 20


class UserFiles:
    """The files of user code that a step depends on, by the paths that they are recorded under.

    A module counts with its imports, which include the ``__init__`` of each package that it is in, and with the files
    that its strings name. If it finds files by computed names, all files of its package count that are not modules,
    except those that ``.gitignore`` and ``.airflowignore`` exclude. A folder of user code may be an archive. Nothing is
    imported.

    Args:
        spec: The step.
        libraries: Libraries of its environment; None if unknown.

    Attributes:
        files: The files by path.
        script: Path of the script or notebook; None for none.
        unknown: Reasons why a change of the code could remain undetected.
        fingerprint: SHA-256 (hex) of all; a random one if anything is unknown.
    """

    def __init__(self, spec: StepSpec, libraries: Libraries | None = None) -> None:
        self.files: dict[str, Traversable] = {}
        self.script: str | None = None
        self.unknown: list[str] = []
        self._libraries = libraries
        self._roots = {str(number): _open_place(folder) for number, folder in enumerate(spec.code_paths)}
        self._search = dict(self._roots)
        self._rules = IgnoreRules([root for root in self._roots.values() if isinstance(root, Path)])
        self._listings: dict[str, dict[str, Traversable]] = {}
        self._trees: set[tuple[str, bool]] = set()
        self._waiting, self._seen = set(_module_names(spec.params)), set[str]()
        self._imports_anything = False
        self._sources: list[str] = []
        for value in _values(spec.params):
            if (
                isinstance(value, dict) and {"source", "function", "wants_context"} <= value.keys()
            ):  # a function with its source
                self._follow(references(value["source"]))
        self._add_script(next((str(spec.params[name]) for name in FILE_PARAMS if spec.params.get(name)), None))
        self._follow(References(files=frozenset(value for value in _values(spec.params) if isinstance(value, str))))
        for name in (spec.entry, *_functions(spec.params)):
            if not self._reach(name.partition(":")[0]):
                self.unknown.append(f"{name!r} is neither in a file beside the DAG file nor in the runtime environment")
        while waiting := self._waiting - self._seen:
            for name in sorted(waiting):
                self._reach(name)
        if len(self.files) > _MAX_FILES:
            self.unknown.append(f"it has more than {_MAX_FILES:,} files; exclude what is not code in .airflowignore")
        self.fingerprint = self._fingerprint()

    @property
    def folders(self) -> int:
        """The number of folders of user code."""
        return sum(place.isdigit() for place in self._roots)

    def is_link_out(self, name: str) -> bool:
        """Returns whether a file is a link out of the user code; an imported top-level entry may be a link."""
        place, top, *_ = name.split("/")
        root, file = self._roots[place], self.files[name]
        if not isinstance(root, Path) or not isinstance(file, Path):
            return False
        return not any(file.resolve().is_relative_to(each.resolve()) for each in (root, root / top))

    def _reach(self, name: str) -> bool:
        """Adds a module by its dotted name; returns whether it exists."""
        self._seen.add(name)
        top, *_ = parts = name.split(".")
        if top == airflow_hops.__name__:  # covered by package_fingerprint()
            return True
        in_places = [self._add_module(place, folder, parts) for place, folder in self._search.items()]
        if any(in_places):
            return True
        if self._libraries is None or top in sys.stdlib_module_names:
            return top in sys.stdlib_module_names
        for folder in self._libraries.source_folders:
            if not ((folder / top).is_dir() or any(folder.glob(f"{top}.*"))):
                continue
            place = next((place for place, root in self._roots.items() if root == folder), str(self.folders))
            self._roots[place] = folder
            if self._add_module(place, folder, parts):
                return True
        return self._libraries.has_module(top)

    def _add_module(self, place: str, folder: Traversable, parts: Sequence[str]) -> bool:
        """Adds a module, and the ``__init__`` of each package that it is in; returns whether the module exists.

        If the last part is ``*``, it adds all files of the package.
        """
        inside = folder
        for depth, part in enumerate(parts):
            if part == "*":
                self._add_tree(place, inside, parts[:depth], self._rules.around(inside))
                break
            files = self._modules(inside, part)
            inside = inside / part
            for file in files:
                self._add_file(place, file, parts[:depth])
            if not inside.is_dir():  # the rest may be a name in the module
                return bool(files) and depth + 1 == len(parts)
            for file in self._modules(inside, "__init__"):
                self._add_file(place, file, parts[: depth + 1])
        return True

    def _add_data(self, name: str) -> None:
        """Adds the files that are not modules of a package, or of the package that a module is in."""
        for place, inside in {**self._roots, **self._search}.items():
            parts: list[str] = []
            for part in name.split("."):
                if part and (inside / part).is_dir():
                    inside, parts = inside / part, [*parts, part]
                else:
                    break
            if parts or not name:
                self._add_tree(place, inside, parts, self._rules.around(inside), data_only=True)

    def _add_tree(
        self, place: str, folder: Traversable, parts: Sequence[str], rules: IgnoreRules, data_only: bool = False
    ) -> None:
        """Adds the files below a folder, except bytecode and hidden or excluded ones; skips links to folders.

        Of a folder of user code itself it adds only the files that lie directly in it.
        """
        if (str(folder), data_only) in self._trees or len(self.files) > _MAX_FILES:
            return
        self._trees.add((str(folder), data_only))
        rules = rules.within(folder)
        for entry in self._entries(folder).values():
            is_folder = entry.is_dir()
            if rules.exclude(entry, is_folder):
                continue
            if not is_folder and not (data_only and module_name(entry.name)):
                self._add_file(place, entry, parts)
            elif is_folder and parts and not (isinstance(entry, Path) and entry.is_symlink()):
                self._add_tree(place, entry, [*parts, entry.name], rules, data_only)

    def _add_everything(self) -> None:
        """Adds everything that can be imported, for code whose imports cannot be determined."""
        if not self._imports_anything:
            self._imports_anything = True
            for place, root in self._search.items():
                self._add_modules(place, root, [], self._rules.around(root).within(root))

    def _add_modules(self, place: str, folder: Traversable, parts: Sequence[str], rules: IgnoreRules) -> None:
        """Adds the modules below a folder, and packages as a whole."""
        for entry in self._entries(folder).values():
            is_folder = entry.is_dir()
            if rules.exclude(entry, is_folder) or entry.name == airflow_hops.__name__:
                continue
            if not is_folder and module_name(entry.name) is not None:
                self._add_file(place, entry, parts)
            elif is_folder and self._modules(entry, "__init__"):
                self._add_tree(place, entry, [*parts, entry.name], rules)
            elif is_folder and entry.name.isidentifier() and not (isinstance(entry, Path) and entry.is_symlink()):
                self._add_modules(place, entry, [*parts, entry.name], rules.within(entry))

    def _add_file(self, place: str, file: Traversable, parts: Sequence[str]) -> None:
        """Adds a file and its references; ``parts`` is the path of its folder."""
        name = "/".join([place, *parts, file.name])
        if name in self.files or not file.is_file():
            return
        if file.name.endswith(".pyc") and f"{file.name[:-1]}" in self._entries(self._folder(place, parts)):
            return  # Python prefers the source
        self.files[name] = file
        if file.name.endswith(".py"):
            self._follow(references(read_file(file) or b"", parts, module_name(file.name) == "__init__"), place, parts)
        elif module_name(file.name) is not None:
            self._add_everything()  # a compiled module may import anything

    def _follow(self, result: References, place: str | None = None, parts: Sequence[str] = ()) -> None:
        """Adds the references of a source: modules, and files by their paths from its folder or a parent."""
        self._waiting |= result.modules
        for package in result.data:
            self._add_data(package)
        if result.anything:
            self._add_everything()
        for root in self._search if place is None else (place,):
            for depth in range(len(parts) + 1):
                folder = self._folder(root, parts[:depth])
                for pattern in result.files:
                    self._add_named(root, folder, parts[:depth], pattern.split("/"), pattern in result.folders)

    def _add_named(
        self, place: str, folder: Traversable, parts: Sequence[str], path: Sequence[str], folders: bool
    ) -> None:
        head, *rest = [part for part in path if part not in ("", ".", "..")] or [""]
        entries = self._entries(folder)
        names = [head] if head in entries else []
        if set(head) & set("*?["):
            # A text such as f"{count}y" names at most a data file.
            names = [n for n in fnmatch.filter(entries, head) if head == "*" or "." in head or module_name(n) is None]
        for name in names:
            entry, inner = entries[name], [*parts, name]
            if not entry.is_dir():
                self._add_file(place, entry, parts) if not rest else None
            elif rest:
                self._add_named(place, entry, inner, rest, folders)
            elif folders:
                self._add_tree(place, entry, inner, self._rules.around(entry))

    def _add_script(self, script: str | None) -> None:
        """Adds a script or notebook, without its outputs; its folder counts as one of user code."""
        if script is None:
            return
        roots = [Path("/")] if Path(script).is_absolute() else [r for r in self._roots.values() if isinstance(r, Path)]
        named = (Path(os.path.normpath(root / script)) for root in roots)
        path = next((each for each in named if each.is_file()), None)
        if path is None:
            self.unknown.append(f"{script!r} is not a file beside the DAG file")
            return
        around = ((place, root) for place, root in self._roots.items() if path.is_relative_to(str(root)))
        place, folder = next(around, (_SCRIPT_PLACE, path.parent))
        self._roots.setdefault(place, folder)
        retained = PurePosixPath(place) / path.relative_to(str(folder))
        self.script = retained.as_posix()
        self.files[self.script] = path
        self._search[retained.parent.as_posix()] = path.parent
        text = path.read_text(errors="replace")
        sources = notebook_cells(text) if path.suffix == ".ipynb" else [text]
        if sources is None:
            self.unknown.append(f"a cell of {script} does not parse, so that its imports are not known")
        self._sources += sources or [text]
        for source in sources or ():
            self._follow(references(source), retained.parent.as_posix())

    def _fingerprint(self) -> str:
        digest, left = hashlib.sha256(), _MAX_BYTES
        for source in self._sources:
            digest.update(hashlib.sha256(source.encode(errors="surrogatepass")).digest())
        for name, file in sorted(self.files.items()):
            if name == self.script:
                continue
            if (content := read_file(file, left)) is None:  # too large: its state changes with its content
                try:
                    status = Path(str(file)).stat()
                    state = (status.st_size, status.st_ino, status.st_mtime_ns, status.st_ctime_ns)
                    content = " ".join(map(str, state)).encode()
                except OSError as error:
                    self.unknown.append(f"{file} cannot be read ({error.strerror})")
                    content = b""
            left -= len(content)
            digest.update(b"%s\0%s" % (os.fsencode(name), hashlib.sha256(content).digest()))
        if self.unknown:
            digest.update(secrets.token_bytes())
        return digest.hexdigest()

    def _folder(self, place: str, parts: Sequence[str]) -> Traversable:
        root = self._search.get(place) or self._roots[place]
        return root.joinpath(*parts) if parts else root

    def _entries(self, folder: Traversable) -> dict[str, Traversable]:
        """Returns the entries of a folder by name, without hidden ones and ``__pycache__``."""
        if (listing := self._listings.get(str(folder))) is None:
            try:
                entries = sorted(folder.iterdir(), key=lambda entry: entry.name) if folder.is_dir() else []
            except OSError as error:
                self.unknown.append(f"{folder} cannot be read ({error.strerror})")
                entries = []
            listing = {entry.name: entry for entry in entries if entry.name != "__pycache__" and entry.name[0] != "."}
            self._listings[str(folder)] = listing
        return listing

    def _modules(self, folder: Traversable, name: str) -> list[Traversable]:
        return [file for file in self._entries(folder).values() if module_name(file.name) == name]


def _open_place(folder: str) -> Traversable:
    """Opens a folder of user code, which may be an archive, or be inside one."""
    path = Path(os.path.normpath(folder))
    archive = next((each for each in (path, *path.parents) if each.is_file()), None)
    if archive is None or not zipfile.is_zipfile(archive):
        return path
    inside = path.relative_to(archive).as_posix()
    return zipfile.Path(archive, "" if inside == "." else f"{inside}/")


def read_file(file: Traversable, limit: float = float("inf")) -> bytes | None:
    """Returns the content of a file; None if it is larger than the limit, or cannot be read."""
    try:
        if isinstance(file, Path) and file.stat().st_size > limit:
            return None
        return file.read_bytes()
    except (OSError, zipfile.BadZipFile):
        return None


def _values(value: object) -> Iterator[Any]:
    """Yields a value and all values nested in it."""
    yield value
    if isinstance(value, dict | list | tuple):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _values(item)


def _module_names(params: object) -> Iterator[str]:
    """Yields the modules of values of the form ``module:function``."""
    for value in _values(params):
        module, separator, function = value.partition(":") if isinstance(value, str) else ("", "", "")
        if separator and function.isidentifier() and all(part.isidentifier() for part in module.split(".")):
            yield module


def _functions(params: Any) -> Iterator[str]:
    """Yields the parameters that name a function as ``module:function``, also of a trial's training."""
    for options in (params, params.get("training") or {}):
        yield from (options[name] for name in FUNCTION_PARAMS if isinstance(options.get(name), str))
    metrics = params.get("metrics")
    yield from (each[0] for each in (metrics.values() if isinstance(metrics, dict) else ()) if isinstance(each, list))
