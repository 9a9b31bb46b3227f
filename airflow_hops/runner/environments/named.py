"""Named environments, which add packages to the runtime environment without changing its own.

A named environment ``churn`` of ``hops-runtime`` is the folder ``hops-runtime-churn``: a virtual environment that holds
only the added packages, and imports the others from the runtime environment. It takes about a second to make and little
space. With packages that conflict with the runtime environment's, it is *standalone*, and holds all that its steps
import. Standard library only.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from airflow_hops.core import profiles
from airflow_hops.core.errors import BadInput
from airflow_hops.core.processes.files import locked
from airflow_hops.core.processes.temporary_folders import temporary_folder
from airflow_hops.core.profiles import (
    BASE_NAME,
    LOCK_NAME,
    STANDALONE,
    Stamp,
    base_of,
    is_standalone,
    locked_packages,
    profile_of,
    profile_of_pins,
    read_stamp,
)
from airflow_hops.runner.environments.runtime import (
    UNFINISHED,
    EnvironmentState,
    added_requirements,
    environment_state,
    find_python,
    fingerprint,
    machine_profile,
    pins_fingerprint,
    write_added,
    write_stamp,
)
from airflow_hops.runner.environments.uv_program import Say, package_name, run_uv

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*")
LINK_NAME = "hops-base.pth"
"""File in a named environment that makes Python import the packages of its base."""
_BOOSTERS = {"lightgbm", "xgboost", "xgboost-cpu"}
_CONVERTER = "onnxmltools"
"""Exporter of models of :data:`_BOOSTERS`."""
_STANDALONE_PACKAGES = {"deltalake", "feast", "pyiceberg"}
"""Packages that cannot be installed beside those of the runtime environment."""
_IMPORTED = ("fsspec", "s3fs", "gcsfs", "adlfs", "hdfs-native", "google-crc32c", "numpy", "orjson", "pyarrow")
"""Packages that steps import to reach the store and write tables; a standalone environment gets those of its base."""


@dataclass(frozen=True)
class NamedEnvironment:
    """An existing named environment, with the requirements that it was asked to add."""

    name: str
    folder: Path
    requirements: tuple[str, ...]
    state: EnvironmentState


def is_name(text: str) -> bool:
    """Returns whether the text is a valid name of a named environment."""
    return _NAME.fullmatch(text) is not None


def named_folder(base: Path, name: str) -> Path:
    """Returns the folder of a named environment, which need not exist.

    Raises:
        BadInput: the name is invalid.
    """
    if not is_name(name):
        raise BadInput(f"runtime {name!r}: expected a name of lower-case letters, digits, '-' and '_'")
    return base.with_name(f"{base.name}-{name}")


def find_named(base: Path, name: str) -> Path:
    """Returns the folder of an existing named environment.

    Raises:
        BadInput: it does not exist.
    """
    folder = named_folder(base, name)
    if not (folder / BASE_NAME).exists():
        there = ", ".join(named.name for named in list_named(base)) or "none"
        raise BadInput(
            f"runtime {name!r}: there is no such environment beside {base} (there are: {there}); make it with "
            f"'airflow hops runtime create --name {name} --with PACKAGE' on every machine that runs steps"
        )
    return folder


def list_named(base: Path) -> list[NamedEnvironment]:
    """Lists the named environments of a runtime environment, sorted by name."""
    folders = sorted(base.parent.glob(f"{base.name}-*/{BASE_NAME}"))
    return [
        NamedEnvironment(
            file.parent.name.removeprefix(f"{base.name}-"),
            file.parent,
            tuple(added_requirements(file.parent)),
            named_state(file.parent),
        )
        for file in folders
    ]


def named_state(folder: Path) -> EnvironmentState:
    """Returns the state of a named environment; also stale if its base's added packages have changed."""
    base = base_of(folder)
    state = environment_state(folder, _resolved_with(base, pins_fingerprint(base)))
    if state.name == "stale":
        made_of, of_base = profile_of_pins((read_stamp(folder) or Stamp()).pins), profile_of(base)
        if made_of is not None and of_base not in (None, made_of):
            detail = f"{folder} is of the profile {made_of.name!r}, its base {base} of {of_base.name!r}"
            return EnvironmentState(state.name, detail)
        detail = f"{folder} was resolved with packages other than those that {base} has now"
        return EnvironmentState(state.name, detail)
    return state


def _resolved_with(base: Path, pins: str) -> str:
    """Returns the fingerprint of a base with these pins and its added requirements."""
    added = "\n".join(added_requirements(base))
    return hashlib.sha256(f"{pins}\n{added}".encode()).hexdigest() if added else pins


def make_named(
    base: Path,
    name: str,
    requirements: Sequence[str],
    pins: Path,
    *,
    uv: str,
    python: str | None = None,
    force: bool = False,
    say: Say = print,
) -> bool:
    """Makes a named environment, or updates an existing one to other requirements or its base's packages.

    Args:
        base: Folder of the runtime environment.
        name: The named environment's name.
        requirements: All requirements to add, in pip's syntax: ``lightgbm``, ``xgboost-cpu==3.2.0``. Exporters of their
            models are added as well. With Feast, pyiceberg or deltalake, the environment is standalone.
        pins: The base's pinned requirements.
        uv: The uv program.
        python: An interpreter that must be of the base's version; None for no check.
        force: Whether to recreate it.
        say: Called with each line of progress.

    Returns:
        Whether anything was done.

    Raises:
        BadInput: the base is missing or incomplete, the folder holds something else, or a requirement is invalid.
        HopsError: the requirements conflict with the base's packages; nothing was installed.
    """
    base = base.absolute()
    folder = named_folder(base, name)
    expected, settings = fingerprint(pins), pins.with_name("uv.toml")
    state = environment_state(base, expected)
    if state.name not in ("good", "unmanaged"):
        raise BadInput(f"{base}: {state.detail}; run 'airflow hops runtime create {base}' first")
    if folder.exists() and any(folder.iterdir()) and not (folder / BASE_NAME).exists():
        raise BadInput(f"{folder}: will not be overwritten, because airflow-hops did not make it; choose another name")
    if python is not None:
        find_python(uv, python, (profile_of(base) or machine_profile()).pythons)
    requirements = list({package_name(requirement): requirement for requirement in requirements}.values())
    names = set(map(package_name, requirements))
    standalone = bool(_STANDALONE_PACKAGES & names)
    clients = [name for name in _IMPORTED if name in installed_packages(base)] if standalone else []
    wanted = [*requirements, *([_CONVERTER] if _BOOSTERS & names else []), *clients]
    with locked(base):  # two that make the same one would remove each other's files
        old_lock = locked_packages(folder)
        lock = resolve(base, wanted, pins, uv=uv, say=say, before=old_lock, standalone=standalone)
        expected = _resolved_with(base, expected)
        state = environment_state(folder, expected)
        if state.good and not force and lock == old_lock:
            write_added(folder, requirements)
            return False
        if force or not state.good or is_standalone(folder) != standalone:
            interpreter = str(base / "bin" / "python")
            run_uv(
                [uv, "venv", "--no-project", "--quiet", "--clear", "--python", interpreter, str(folder)], settings, say
            )
            if not standalone:
                (site,) = folder.glob("lib/python3*/site-packages")
                (base_site,) = base.glob("lib/python3*/site-packages")
                # As a site folder, so that its own .pth files apply as well.
                (site / LINK_NAME).write_text(f"import site; site.addsitedir({str(base_site)!r})\n")
        write_stamp(folder, pins, UNFINISHED)
        (folder / BASE_NAME).write_text(f"{base}\n{STANDALONE}\n" if standalone else f"{base}\n")
        (folder / LOCK_NAME).write_text("".join(f"{line}\n" for line in lock))
        write_added(folder, requirements)
        command = [uv, "pip", "sync", "--quiet", "--allow-empty-requirements"]
        target = ["--python", str(folder / "bin" / "python"), str(folder / LOCK_NAME)]
        run_uv([*command, *target], settings, say)
        write_stamp(folder, pins, expected)
        return True


def resolve(
    base: Path,
    requirements: Sequence[str],
    pins: Path,
    *,
    uv: str,
    say: Say = print,
    before: Sequence[str] = (),
    standalone: bool = False,
) -> list[str]:
    """Returns the packages that requirements would add to the environment ``base``, as ``name==version``.

    Versions of ``before``, the previously locked packages, are preferred. uv's settings are beside the ``pins``. If
    ``standalone``, these are all packages of an environment that only has the base's Python.

    Raises:
        HopsError: they conflict with the environment's packages; uv's output went to ``say``.
    """
    there = {} if standalone else installed_packages(base)
    with temporary_folder("uv") as folder:
        wanted, constraints, lock = (folder / name for name in ("wanted.txt", "there.txt", "lock.txt"))
        wanted.write_text("".join(f"{requirement}\n" for requirement in requirements))
        constraints.write_text("".join(f"{name}=={version}\n" for name, version in there.items()))
        lock.write_text("".join(f"{line}\n" for line in before))
        command = [uv, "pip", "compile", "--quiet", "--no-header", "--no-annotate", "--no-emit-index-url"]
        options = ["--constraint", str(constraints), "--python", str(base / "bin" / "python")]
        run_uv([*command, *options, "--output-file", str(lock), str(wanted)], pins.with_name("uv.toml"), say)
        lines = [line for line in lock.read_text().splitlines() if line and not line.startswith(("#", "-"))]
    return [line for line in lines if package_name(line) not in there]


def installed_packages(folder: Path) -> dict[str, str]:
    """Returns the packages of an environment without its base, name to version, without starting its Python."""
    packages = {}
    for info in sorted(folder.glob("lib/python3*/site-packages/*.dist-info")):
        name, _, version = info.name.removesuffix(".dist-info").partition("-")
        packages[package_name(name)] = version
    return packages


def packages_of(runtime: Path) -> dict[str, str]:
    """Returns the packages that an environment's Python imports, name to version."""
    base, own = base_of(runtime), installed_packages(runtime)
    return own if base == runtime or is_standalone(runtime) else {**installed_packages(base), **own}


def packages_from_elsewhere(runtime: Path) -> list[str]:
    """Lists an environment's packages that were installed from a path or URL instead of an index."""
    pattern = "lib/python3*/site-packages/*.dist-info/direct_url.json"  # https://peps.python.org/pep-0610/
    matches = [file for folder in (base_of(runtime), runtime) for file in folder.glob(pattern)]
    return sorted({package_name(file.parent.name.partition("-")[0]) for file in matches})


def python_version(runtime: Path) -> str:
    """Returns the version of an environment's Python; empty if unknown."""
    return profiles.python_version(base_of(runtime))


def remove_named(base: Path, name: str) -> Path:
    """Removes a named environment, and returns its folder.

    Raises:
        BadInput: it does not exist.
    """
    folder = find_named(base, name)
    shutil.rmtree(folder)
    return folder


def site_packages(runtime: Path) -> list[Path]:
    """Returns the folders with the packages of an environment, those of its base first."""
    folders = dict.fromkeys([runtime] if is_standalone(runtime) else [base_of(runtime), runtime])
    return [site for folder in folders for site in folder.glob("lib/python3*/site-packages")]


def runtime_fingerprint(runtime: Path) -> str:
    """Returns the SHA-256 (hex) of an environment's libraries: its pins, and each package with its version.

    Files count too if a package came from a path or an address instead of an index. Horovod does not count: the pins
    have its version, and installed or not, it changes no result of a step that runs without it.
    """
    lines = [pins_fingerprint(base_of(runtime))]
    for site in site_packages(runtime):
        for info in sorted(site.glob("*-info")):
            files = b""
            if (info / "direct_url.json").exists() and (info / "RECORD").exists():
                files = (info / "RECORD").read_bytes()
            if not info.name.startswith("horovod-"):
                lines.append(f"{info.name} {hashlib.sha256(files).hexdigest()}")
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
