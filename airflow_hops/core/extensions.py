"""Implementations that distributions register under the entry-point groups of this package.

Steps import this package from a path, without its being installed. So its own registrations are not in its metadata but
in files: ``entry_points.ini`` beside this module, and one in each folder of ``airflow_hops/extensions``, which can be
removed.
"""

from __future__ import annotations

import configparser
import os
import sys
from collections import ChainMap
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, distributions
from importlib.resources import files
from typing import Any, TypeVar

from airflow_hops.core.errors import BadInput
from airflow_hops.core.names import check_known

STAGES = "airflow_hops.stages"
SOURCES = "airflow_hops.sources"
LAUNCHERS = "airflow_hops.launchers"
STEP_GATES = "airflow_hops.step_gates"
PREPARE_ENGINES = "airflow_hops.prepare_engines"
FRAMEWORKS = "airflow_hops.frameworks"
MODEL_FORMATS = "airflow_hops.model_formats"
COLUMN_DECODERS = "airflow_hops.column_decoders"
MODEL_SERVERS = "airflow_hops.model_servers"
STRATEGIES = "airflow_hops.strategies"
RANK_PLACES = "airflow_hops.rank_places"
COMMANDS = "airflow_hops.commands"
PAGES = "airflow_hops.pages"
PROVIDER_INFO = "airflow_hops.provider_info"
FILE_SYSTEMS = "airflow_hops.file_systems"
LINEAGE = "airflow_hops.lineage"
LOOPS = "airflow_hops.loops"
IMPORT_PATHS = "airflow_hops.import_paths"
SERVER_PARTS = "airflow_hops.server_parts"
UPSTREAMS = "airflow_hops.upstreams"
ROW_COMPARISONS = "airflow_hops.row_comparisons"
OWN = "airflow-hops"
"""Name of this package's distribution."""

_Kind = TypeVar("_Kind")


@dataclass(frozen=True)
class Extension:
    """A registered implementation.

    Attributes:
        value: ``module`` or ``module:name``.
        distribution: Name of the distribution that registers it.
    """

    group: str
    name: str
    value: str
    distribution: str

    def __str__(self) -> str:
        return f"{self.group} {self.name!r} = {self.value!r} of the distribution {self.distribution!r}"

    def load(self) -> Any:
        """Imports the implementation. Raises BadInput if it cannot be imported."""
        try:
            return EntryPoint(self.name, self.value, self.group).load()
        except Exception as error:  # the distribution's modules may raise anything
            raise BadInput(
                f"{self} cannot be loaded ({type(error).__name__}: {error}); repair or uninstall that distribution"
            ) from error


def extensions(group: str) -> Mapping[str, Extension]:
    """Returns the implementations of a group by name. Raises BadInput if two distributions register the same name."""
    return _extensions(group, tuple(_state_of(place) for place in sys.path))


def _state_of(place: str) -> tuple[str, int]:
    """Returns an entry of the import path, and when a distribution was last installed there or removed."""
    try:
        return place, os.stat(place or ".").st_mtime_ns  # noqa: PTH116  # a path object takes longer than the call
    except OSError:
        return place, 0


@cache
def _extensions(group: str, path: tuple[tuple[str, int], ...]) -> Mapping[str, Extension]:
    own = _own().get(group, {})
    results = {name: Extension(group, name, value, OWN) for name, value in own.items()}
    # As for imports, the first of a name on the path counts. That of this package is an older one's: files replace it.
    registered = ChainMap[str, tuple[EntryPoint, ...]]({OWN: ()}, *map(_registered_in, path))
    for distribution, points in registered.items():
        for point in (each for each in points if each.group == group):
            each = Extension(group, point.name, point.value, distribution)
            other = results.setdefault(point.name, each)
            if other.distribution != distribution:
                raise BadInput(f"{each} has the name of {other}; uninstall one of them")
    return results


@cache
def _registered_in(place: tuple[str, int]) -> dict[str, tuple[EntryPoint, ...]]:
    """Returns registrations by distribution, in an entry of the import path; forks have what their parent has read.

    Metadata of all distributions is read once, since that takes as long as forking a step.
    """
    results: dict[str, tuple[EntryPoint, ...]] = {}
    for each in distributions(path=[place[0]]):
        if "[airflow_hops." in (each.read_text("entry_points.txt") or ""):
            results.setdefault(each.name, tuple(each.entry_points))
    return results


@cache
def _own() -> Mapping[str, Mapping[str, str]]:
    """Returns the registrations of this package by group: the trunk first, then its extensions by name."""
    package, results = files("airflow_hops"), dict[str, dict[str, str]]()
    folders = sorted((package / "extensions").iterdir(), key=lambda each: each.name)
    for file in (folder / "entry_points.ini" for folder in (package / "core", *folders)):
        if file.is_file():
            parser = configparser.ConfigParser(delimiters=("=",), interpolation=None)
            parser.read_string(file.read_text())
            for group in parser.sections():
                results.setdefault(group, {}).update(parser.items(group))
    return results


def find_extension(group: str, name: str) -> Extension:
    """Returns a registered implementation; raises BadInput if the name is not registered."""
    known = extensions(group)
    check_known(f"name in the entry-point group {group}", name, sorted(known))
    return known[name]


def load_extension(group: str, name: str) -> Any:
    """Imports an implementation by name.

    Raises:
        BadInput: the name is not registered, or the implementation cannot be imported.
    """
    return find_extension(group, name).load()


def load_class(group: str, name: str, base: type[_Kind]) -> type[_Kind]:
    """Imports a class by name.

    Raises:
        BadInput: it is not registered, cannot be imported, or is not a subclass of ``base``.
    """
    extension = find_extension(group, name)
    kind = extension.load()
    if not (isinstance(kind, type) and issubclass(kind, base)):
        raise BadInput(f"{extension} is {kind!r}; expected a subclass of {base.__name__}")
    return kind


def load_all(group: str, kind: type[_Kind]) -> Mapping[str, _Kind]:
    """Returns all implementations of a group by name; those of other distributions come first.

    An entry point names an instance or a subclass of ``kind``.

    Raises:
        BadInput: an implementation cannot be used; the message names its distribution.
    """
    return _load_all(group, kind, tuple(sys.path))  # type: ignore[arg-type]


@cache
def _load_all(group: str, kind: type[_Kind], _path: tuple[str, ...]) -> Mapping[str, _Kind]:
    loaded: dict[str, _Kind] = {}
    for each in sorted(extensions(group).values(), key=lambda each: each.distribution == OWN):
        implementation = each.load()
        if isinstance(implementation, type) and issubclass(implementation, kind):
            try:
                implementation = implementation()
            except Exception as error:  # whatever the distribution's code raises
                raise BadInput(f"{each} cannot be made ({type(error).__name__}: {error}); repair it") from error
        if not isinstance(implementation, kind):
            raise BadInput(f"{each} is {implementation!r}, expected a {kind.__name__}")
        loaded[each.name] = implementation
    return loaded
