"""The libraries of the runtime environment that a step can depend on, for its cache key."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from airflow_hops.core.contract.named_environment import base_of, is_standalone, locked_packages
from airflow_hops.environments.runtime import added_requirements, pins_file, pins_fingerprint, pins_of
from airflow_hops.environments.uv_program import package_name
from airflow_hops.user_code.source_references import module_name

_UNNAMED = {"bottleneck", "numexpr", "scikit-umfpack"}
"""Libraries that pandas and SciPy use if installed, without naming them in their metadata."""

_DEVELOPMENT = re.compile(r"test|dev|doc|lint|typ|check|cov|bench|style|enabler|^(all|full|complete)$")
"""Extras with requirements of a library's developers, or with all other extras."""

_TEST_TOOL = re.compile(r"^Classifier: (Framework :: Pytest|Topic :: Software Development :: Testing)", re.MULTILINE)
_REQUIREMENT = re.compile(r"^Requires-Dist: *([\w.-]+)(?:.*\bextra *== *['\"]([^'\"]+))?", re.MULTILINE)
_STARTED_BY_PYTHON = re.compile(
    r"^([^/,]+\.pth|sitecustomize\.py|usercustomize\.py|tensorflow-plugins/.*),", re.MULTILINE
)
_MAPPED = re.compile(r"'\w[\w.]*': '(/[^']+)'")
_ENTRY_POINTS = re.compile(r"^\[(?!(?:console_scripts|gui_scripts|pytest11)\])", re.MULTILINE)
"""Groups of entry points that libraries load."""


class Libraries:
    """The distributions of a runtime environment and its base, without starting its Python."""

    def __init__(self, runtime: Path) -> None:
        self._runtime, self._base = runtime, base_of(runtime)
        folders = dict.fromkeys([runtime] if is_standalone(runtime) else [self._base, runtime])
        self._site_packages = [site for folder in folders for site in folder.glob("lib/python3*/site-packages")]

    def key(self, mentions: Callable[[Iterable[str]], bool]) -> str:
        """Returns the part of a step's cache key for the libraries that it can depend on.

        These are the pinned, added and locked ones, except added testing tools; libraries that the code mentions
        (``mentions`` returns whether it contains any of some names); requirements of all these, also optional ones; and
        libraries that Python or a library loads by itself. Others, such as a pytest that was installed by hand, make no
        difference.
        """
        states = []
        for info in (self._infos[name] for name in self._counted(mentions)):
            # Files count too if a distribution came from a path or URL instead of an index.
            origin = hashlib.sha256(_text(info, "RECORD").encode()).hexdigest() if info in self._origins else ""
            states.append(f"{info.name} {origin}")
        counted = "\n".join(sorted(states))
        pins = pins_fingerprint(self._base)
        return "\n".join([pins, *locked_packages(self._runtime), hashlib.sha256(counted.encode()).hexdigest()])

    def has_module(self, top: str) -> bool:
        """Returns whether a distribution has a top-level module; its content changes only with its version."""
        return any(map(self._is_owned, self._files_of(top)))

    def source_folders(self, top: str) -> Iterator[Path]:
        """Yields folders with a top-level module outside of distributions: editable installs, and copied files."""
        for folder in self._source_folders:
            if (folder / top).is_dir() or any(folder.glob(f"{top}.*")):
                yield folder
        for site in self._site_packages:
            if any(file.parent == site and not self._is_owned(file) for file in self._files_of(top)):
                yield site

    def _files_of(self, top: str) -> list[Path]:
        """Returns the files or folders of the site packages that may be a top-level module."""
        files = [
            file for site in self._site_packages for file in site.glob(f"{top}.*") if module_name(file.name) == top
        ]
        return [*files, *(site / top for site in self._site_packages if (site / top).is_dir())]

    def _counted(self, mentions: Callable[[Iterable[str]], bool]) -> set[str]:
        """Returns the names of the distributions that a step with such code can depend on."""
        pins = [pins_of(self._base), pins_file(), pins_file("java.txt")]
        declared = {package_name(line) for file in pins for line in file.read_text().splitlines() if "==" in line}
        declared |= {package_name(line) for line in locked_packages(self._runtime)}
        added = {package_name(requirement) for requirement in added_requirements(self._base)}
        others = self._infos.keys() - declared
        # The pins have Horovod's version; installed or not, it changes no result of a step that runs without it.
        counted = self._infos.keys() - others - {"horovod"}
        for name in others:
            info = self._infos[name]
            record = _text(info, "RECORD")
            is_added = name in added and not _TEST_TOOL.search(_text(info, "METADATA"))
            # Python may load it by itself; without a record, this is unknown.
            acts_by_itself = name in _UNNAMED or not record or _STARTED_BY_PYTHON.search(record)
            if is_added or acts_by_itself or _ENTRY_POINTS.search(_text(info, "entry_points.txt")):
                counted.add(name)
                continue
            paths = [line.partition(",")[0].split("/") for line in record.splitlines()]
            modules = {path[0].partition(".")[0] for path in paths if not path[0].endswith("-info")}
            programs = {path[-1] for path in paths if path[-2:-1] == ["bin"]}
            if mentions({info.name.partition("-")[0], name, *modules, *programs} - {"", "__pycache__"}):
                counted.add(name)
        waiting = set(counted) if others - counted else set()
        while waiting:
            waiting = {required for name in waiting for required in self._requirements(name)} & others - counted
            counted |= waiting
        return counted

    @cached_property
    def _infos(self) -> dict[str, Path]:
        """The metadata folder of each distribution, by name."""
        kinds = ("*.dist-info", "*.egg-info")
        infos = (info for site in self._site_packages for kind in kinds for info in site.glob(kind))
        return {package_name(info.name.removesuffix(info.suffix).partition("-")[0]): info for info in infos}

    @cached_property
    def _source_folders(self) -> list[Path]:
        """Folders that ``.pth`` files put on the path, and editable projects."""
        folders = []
        for site in self._site_packages:
            lines = [line.strip() for file in sorted(site.glob("*.pth")) for line in file.read_text().splitlines()]
            folders += [site / line for line in lines if line and not line.startswith(("#", "import ", "import\t"))]
            for finder in sorted(site.glob("__editable__*_finder.py")):  # setuptools writes a finder for other layouts
                folders += [Path(path).parent for path in _MAPPED.findall(_text(site, finder.name))]
        for origin in self._origins.values():
            if origin.get("dir_info", {}).get("editable"):
                project = Path(unquote(urlsplit(origin["url"]).path))
                folders += [project, project / "src"]
        return list(dict.fromkeys(folder for folder in folders if folder not in self._site_packages))

    @cached_property
    def _origins(self) -> dict[Path, dict[str, Any]]:
        """Origins of distributions that are not from an index (PEP 610)."""
        files = (file for site in self._site_packages for file in site.glob("*-info/direct_url.json"))
        origins = {}
        for file in files:
            try:
                origins[file.parent] = dict(json.loads(_text(file.parent, file.name)))
            except (ValueError, TypeError):
                origins[file.parent] = {}
        return origins

    def _requirements(self, name: str) -> set[str]:
        """Returns the requirements of a distribution, and its optional ones that are not for developers."""
        header = _text(self._infos[name], "METADATA").partition("\n\n")[0]
        pairs = [(package_name(required), extra) for required, extra in _REQUIREMENT.findall(header)]
        for_developers = {required for required, extra in pairs if _DEVELOPMENT.search(extra)}
        return {required for required, extra in pairs if not extra or required not in for_developers}

    def _is_owned(self, file: Path) -> bool:
        """Returns whether a file or folder of the site packages belongs to a distribution."""
        like = self._infos.get(file.name.partition(".")[0].replace("_", "-").lower())
        records = chain([_text(like, "RECORD")] if like else [], self._records)
        starts = [f"{file.name}{end}" for end in "/,"]
        return any(f"\n{start}" in record or record.startswith(start) for record in records for start in starts)

    @cached_property
    def _records(self) -> list[str]:
        return [_text(info, "RECORD") for info in self._infos.values()]


def _text(info: Path, name: str) -> str:
    """Returns a file of a distribution's metadata; empty if it does not exist."""
    try:
        return (info / name).read_bytes().decode("latin-1")  # ten times as fast as UTF-8; only ASCII is searched for
    except (FileNotFoundError, NotADirectoryError):
        return ""
