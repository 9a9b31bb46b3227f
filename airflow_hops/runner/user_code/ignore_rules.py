"""Rules of ``.gitignore`` and ``.airflowignore`` for files beside user code."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from pathspec import GitIgnoreSpec, PathSpec
from pathspec.pattern import RegexPattern

from airflow_hops.airflow_internals.tasks import conf

_NAMES = (".gitignore", ".airflowignore")


@dataclass(frozen=True)
class IgnoreRules:
    """The rules that apply in a folder.

    Attributes:
        places: Folders of user code: nested ones share their rules, as do those of a repository.
        rules: Rules with the folder that their paths are relative to, from the outermost to the innermost.
    """

    places: Sequence[Path] = ()
    rules: tuple[tuple[str, PathSpec[Any]], ...] = ()

    def around(self, folder: Traversable) -> IgnoreRules:
        """Returns the rules above a folder; none if they exclude it: they are not meant for code in use."""
        if not isinstance(folder, Path):
            return replace(self, rules=())
        above = folder.parents
        repository = next((each for each in (folder, *above) if (each / ".git").exists()), None)
        outermost = min([place for place in self.places if folder.is_relative_to(place)], default=folder)
        first = repository or outermost
        there = replace(self, rules=())
        for each in reversed([parent for parent in above if parent.is_relative_to(first)]):
            there = there.within(each)
        return replace(self, rules=()) if there.exclude(folder, True) else there

    def within(self, folder: Traversable) -> IgnoreRules:
        """Adds the rules of a folder."""
        own = []
        for name in _NAMES:
            if (file := folder / name).is_file():
                lines = file.read_bytes().decode(errors="replace").splitlines()
                own.append((str(folder).rstrip("/"), _spec(name, lines)))
        return replace(self, rules=(*self.rules, *own)) if own else self

    def exclude(self, path: Traversable, is_folder: bool) -> bool:
        """Returns whether a file or folder is excluded; its parent must not be."""
        excluded = False
        for folder, spec in self.rules:
            name = str(path).rstrip("/").removeprefix(f"{folder}/")
            verdict = spec.check_file(f"{name}/" if is_folder else name).include
            excluded = excluded if verdict is None else verdict
        return excluded


def _spec(name: str, lines: list[str]) -> PathSpec[Any]:
    """Parses an ignore file in its syntax; skips invalid rules, as Airflow does."""
    syntax = conf.get("core", "dag_ignore_file_syntax", fallback="glob") if name == ".airflowignore" else "glob"
    if syntax != "regexp":
        return GitIgnoreSpec.from_lines(line for line in lines if _is_valid(GitIgnoreSpec.from_lines, [line]))
    patterns = (re.sub(r"\s*#.*", "", line) for line in lines)
    return PathSpec([RegexPattern(pattern) for pattern in patterns if pattern and _is_valid(RegexPattern, pattern)])


def _is_valid(make: Callable[[Any], object], value: object) -> bool:
    try:
        make(value)
    except (ValueError, re.error):
        return False
    return True
