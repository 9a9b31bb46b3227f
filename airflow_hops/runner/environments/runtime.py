"""Makes Python environments from pinned requirements: the runtime environment and, in a checkout, Airflow's.

Standard library only, because it runs in a fresh checkout before anything is installed.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from airflow_hops.core.errors import BadInput, HopsError
from airflow_hops.core.processes.temporary_folders import temporary_folder
from airflow_hops.core.profiles import (
    BASE,
    PROFILES,
    STAMP_NAME,
    Profile,
    Stamp,
    profile_of,
    profile_of_pins,
    read_stamp,
)
from airflow_hops.runner.environments.cuda import horovod_with_nccl, needs_nccl, toolkit_of_the_machine
from airflow_hops.runner.environments.java import find_java, own_java
from airflow_hops.runner.environments.uv_program import Say, package_name, requirements_file, run_uv, uv_variables

ADDED_NAME = "hops-added.txt"
"""File in an environment: the requirements that its owner added to the pins, one per line."""

AIRFLOW_PYTHON_VERSIONS = ((3, 11), (3, 12), (3, 13))
"""The Pythons that this package supports beside Airflow, as in ``requires-python``."""

UNFINISHED = "unfinished"
"""Stamp of an environment whose installation has begun."""


@dataclass(frozen=True)
class EnvironmentState:
    """The state of an environment's folder, by its stamp.

    Attributes:
        name: ``good``; ``absent`` (missing or empty); ``unfinished`` (an installation was interrupted); ``stale`` (of
            other pins); ``moved`` (made elsewhere: its scripts point there); ``broken`` (its Python is gone);
            ``unmanaged`` (an environment that was made by other means); ``foreign`` (a folder with something else).
        detail: Human-readable description.
    """

    name: str
    detail: str

    @property
    def good(self) -> bool:
        """Whether the environment is complete and has the expected pins."""
        return self.name == "good"


def machine_profile() -> Profile:
    """Returns the newest profile that this machine's C library can run."""
    return next(profile for profile in reversed(PROFILES) if profile is BASE or _machine_glibc() >= profile.glibc)


def check_machine(profile: Profile) -> None:
    """Checks that a profile's libraries run on this machine.

    Raises:
        BadInput: its C library is too old.
    """
    if profile is not BASE and (here := _machine_glibc()) < profile.glibc:
        needed, own = (".".join(map(str, version)) for version in (profile.glibc, here))
        raise BadInput(
            f"profile {profile.name!r}: its libraries need glibc {needed} or newer, as Debian 13 and Ubuntu 24.04 "
            f"have; this machine has {f'glibc {own}' if own else 'another C library'}: use --profile {BASE.name}"
        )


def reason_for_profile() -> str:
    """Describes which profile is chosen on this machine, and why."""
    newest, chosen = PROFILES[-1], machine_profile()
    own = ".".join(map(str, _machine_glibc())) or "none"
    relation = "is at least" if chosen is newest else "is older than"
    return f"{chosen.name}, because glibc {own} {relation} {'.'.join(map(str, newest.glibc))}"


def _machine_glibc() -> tuple[int, ...]:
    name, version = platform.libc_ver()
    return tuple(map(int, version.split(".")[:2])) if name == "glibc" else ()


def pins_file(name: str | None = None) -> Path:
    """Returns the pins of a name, by default of the machine's profile."""
    return requirements_file(name or machine_profile().pins)


def pins_of(path: Path) -> Path:
    """Returns the pinned requirements for an environment's folder: of the profile that it was made of, or with CUDA."""
    stamp, profile = read_stamp(path), profile_of(path)
    if stamp is None or profile is None:
        return pins_file()
    return pins_file(profile.cuda_pins if stamp.pins == profile.cuda_pins else profile.pins)


def pins_fingerprint(path: Path) -> str:
    """Returns the SHA-256 (hex) of the pins that the environment in a folder should hold."""
    return fingerprint(pins_of(path))


def fingerprint(pins: Path) -> str:
    """Returns the SHA-256 (hex) of a file of pins and of the files that it includes."""
    text = pins.read_bytes()
    included = re.findall(r"^-r (\S+)", text.decode(), re.MULTILINE)
    return hashlib.sha256(text + b"".join(pins.with_name(name).read_bytes() for name in included)).hexdigest()


def added_requirements(path: Path) -> list[str]:
    """Returns the requirements that :func:`add_requirements` added to the environment in a folder."""
    try:
        return (path / ADDED_NAME).read_text().splitlines()
    except (FileNotFoundError, NotADirectoryError):
        return []


def environment_state(path: Path, expected: str) -> EnvironmentState:
    """Checks an environment without starting its Python; ``expected`` is the fingerprint of its pins."""
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return EnvironmentState("absent", f"{path} does not exist")
    if not (path / "pyvenv.cfg").exists():
        return EnvironmentState("foreign", f"{path} is not a Python environment (it has no pyvenv.cfg)")
    if not (path / "bin" / "python").exists():
        return EnvironmentState("broken", f"{path}/bin/python does not exist any more; was that Python removed?")
    stamp = read_stamp(path)
    if stamp is None and any(path.glob("lib/python3*/site-packages/*.dist-info")):
        return EnvironmentState("unmanaged", f"{path} was not made by airflow-hops (it has no {STAMP_NAME})")
    made_of, made_in, _ = stamp or Stamp(UNFINISHED)
    if made_in and made_in != str(path.resolve()):
        return EnvironmentState("moved", f"{path} was made in {made_in}")
    if made_of in ("", UNFINISHED):
        return EnvironmentState("unfinished", f"the installation into {path} did not finish")
    if made_of != expected:
        return EnvironmentState("stale", f"{path} holds pins {made_of[:12]}, expected {expected[:12]}")
    return EnvironmentState("good", f"pins {made_of[:12]}")


def write_stamp(path: Path, pins: Path, made_of: str) -> None:
    """Records the fingerprint of an environment's pins, or that it is :data:`UNFINISHED`."""
    (path / STAMP_NAME).write_text(f"{made_of}\n{path}\n{pins.name}\n")


def create_environment(
    path: Path,
    pins: Path,
    *,
    uv: str,
    python: str | None = None,
    versions: Sequence[tuple[int, int]] = (),
    java: Path | None = None,
    horovod: bool = False,
    force: bool = False,
    say: Say = print,
) -> bool:
    """Makes an environment, or completes or updates an existing one.

    Args:
        path: Folder of the environment.
        pins: Pinned requirements. A ``uv.toml`` beside them holds the build settings.
        uv: The uv program.
        python: Path or name of the interpreter; None for this process's own if its version fits, else for one that uv
            finds on this machine, or downloads.
        versions: Versions of the interpreter, the preferred one first; empty for those of the pins' profile.
        horovod: Whether to build Horovod, with NCCL if that is pinned; an environment that has it keeps it without
            ``force``.
        java: Requirements of a Java, installed if the machine has none that Spark runs on; None for no check.
        force: Whether to recreate an existing environment.
        say: Called with each line of progress.

    Returns:
        Whether anything was done.

    Raises:
        BadInput: the folder holds something that must not be overwritten, the pins' profile does not run on this
            machine, ``python`` is of another version, or NCCL is needed and ``CUDA_HOME`` is not a complete toolkit.
            The folder is unchanged.
        HopsError: there is no such Python, or the installation failed; uv's output went to ``say``.
    """
    path = path.resolve()
    expected = fingerprint(pins)
    state = environment_state(path, expected)
    profile = profile_of_pins(pins.name) or BASE
    check_machine(profile)
    machines_own = find_java(supported=profile.javas)
    wants_java = java is not None and (machines_own is None or not machines_own.supported)
    has_horovod = any(path.glob("lib/python3*/site-packages/horovod-*.dist-info"))
    is_added = (horovod and not has_horovod) or (wants_java and own_java(path) is None)
    horovod = horovod or (has_horovod and not force)
    if state.good and not force and not is_added:
        return False
    if state.name == "foreign" or path == Path(sys.prefix).resolve():
        detail = state.detail if state.name == "foreign" else "this process runs in it"
        raise BadInput(f"{path}: will not be overwritten, because {detail}; name an empty or new folder")
    if state.name == "unmanaged" and not force:
        raise BadInput(
            f"{state.detail}, and all packages except the pins would be removed from it; delete it, or use --force"
        )
    settings = pins.with_name("uv.toml")
    nccl = horovod and needs_nccl(pins)
    toolkit = toolkit_of_the_machine(os.environ) if nccl else None
    added = added_requirements(path)
    present = (read_stamp(path) or Stamp()).pins or BASE.pins
    # uv 0.13: would keep an installed Horovod of the same version, whether built with NCCL or not.
    other_kind = present != pins.name and (horovod or profile_of_pins(present) is not profile_of_pins(pins.name))
    if force or other_kind or state.name not in ("unfinished", "stale", "good"):
        interpreter = find_python(uv, python, versions or profile.pythons, say)
        say(f"new environment on {interpreter}")
        run_uv([uv, "venv", "--no-project", "--quiet", "--clear", "--python", interpreter, str(path)], settings, say)
    write_stamp(path, pins, UNFINISHED)
    write_added(path, added)
    files = []
    if wants_java and java is not None:
        say(f"this machine has no Java that Spark runs on: installing a bundled Java ({java.name})")
        files.append(str(java.resolve()))
    python_of_it = path / "bin" / "python"
    try:
        with (
            horovod_with_nccl(pins, python_of_it, toolkit, uv=uv, say=say) if nccl else nullcontext() as build,
            nullcontext(pins.resolve()) if horovod else _pins_without_horovod(pins) as installed,
        ):
            # Python compiles what it imports; all modules would take longer than their installation.
            command = [uv, "pip", "sync", "--python", str(python_of_it), str(installed), *files]
            run_uv(command, settings, say, build)
    except BadInput:
        raise
    except HopsError as error:
        if state.good and not force:  # uv builds what is added before it changes anything
            write_stamp(path, pins, expected)
        if not horovod:
            raise
        missing = build_tools_missing(str(python_of_it))
        if missing:
            needed = f"{error}; packages that are built here need: apt-get install {' '.join(missing)}"
            raise HopsError(needed) from None
        if old := old_compiler(profile, os.environ):
            raise HopsError(f"{error}; {old}") from None
        raise
    if added:
        _install_added(path, pins, added, uv, say)
    write_stamp(path, pins, expected)
    return True


@contextmanager
def _pins_without_horovod(pins: Path) -> Iterator[Path]:
    """Provides a copy of the pins and the files that they include, without Horovod, within the context."""
    with temporary_folder("uv") as folder:
        for file in pins.parent.glob("*.txt"):
            (folder / file.name).write_text(re.sub(r"^horovod==.*\n", "", file.read_text(), flags=re.MULTILINE))
        yield folder / pins.name


def add_requirements(path: Path, pins: Path, requirements: Sequence[str], *, uv: str, say: Say = print) -> None:
    """Installs packages without changing those of the pins; :func:`create_environment` keeps them.

    Requirements are in pip's syntax: ``scikit-image``, ``shap==0.46``.

    Raises:
        BadInput: there is no complete environment of these pins, or a requirement does not begin with a package's name.
        HopsError: they conflict with the pins. Nothing was installed; uv's output went to ``say``.
    """
    path = path.resolve()
    state = environment_state(path, fingerprint(pins))
    if state.name not in ("good", "unmanaged"):
        raise BadInput(f"{path}: {state.detail}; run 'airflow hops runtime create {path}' first")
    added = {package_name(requirement): requirement for requirement in [*added_requirements(path), *requirements]}
    _install_added(path, pins, list(added.values()), uv, say)
    write_added(path, list(added.values()))


def _install_added(path: Path, pins: Path, requirements: Sequence[str], uv: str, say: Say) -> None:
    target = ["--python", str(path / "bin" / "python"), "--constraint", str(pins.resolve())]
    command = [uv, "pip", "install", *target, "--", *requirements]
    run_uv(command, pins.with_name("uv.toml"), say)


def write_added(path: Path, requirements: Sequence[str]) -> None:
    """Records the requirements that were added to an environment."""
    if requirements or (path / ADDED_NAME).exists():
        (path / ADDED_NAME).write_text("".join(f"{requirement}\n" for requirement in requirements))


def find_python(uv: str, requested: str | None, versions: Sequence[tuple[int, int]], say: Say = print) -> str:
    """Returns the path of an interpreter: the requested one, this process's own, or one that uv finds or downloads.

    Raises:
        BadInput: ``requested``, a path or name, is not a Python of these versions.
        HopsError: this machine has none, and uv could not download one.
    """
    names = [f"{major}.{minor}" for major, minor in versions]
    wanted, first = " or ".join(names), names[0]
    env = uv_variables(os.environ)

    def ask(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [uv, "python", *command], env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL
        )

    def find(request: str, *options: str) -> str:
        return ask("find", "--no-project", "--system", *options, request).stdout.strip()

    if requested is not None:
        given_version = find(requested, "--show-version")
        if ".".join(given_version.split(".")[:2]) not in names:
            actual = f"Python {given_version}" if given_version else "none"
            raise BadInput(f"--python {requested}: Python {wanted} is needed, found {actual}; name another one")
        return find(requested)
    if sys.version_info[:2] in versions:
        return sys.executable
    if python := next(filter(None, map(find, names)), ""):
        return python
    say(f"there is no Python {wanted} on this machine: uv will download one")
    for line in ask("install", "--no-bin", first).stderr.splitlines():
        say(line)
    if python := find(first):
        return python
    raise HopsError(
        f"Python {wanted} is needed, but this machine has none, and uv could not download it (see its output "
        f"above); install it, so that python{first} is on the PATH (Debian: apt-get install python3), or name a "
        "mirror for uv in UV_PYTHON_INSTALL_MIRROR; then run this again"
    )


def old_compiler(profile: Profile, env: Mapping[str, str]) -> str | None:
    """Describes a compiler that is too old to build a profile's Horovod; None if it is not."""
    if profile is BASE:
        return None
    compiler = env.get("CXX") or "g++"
    check = [*shlex.split(compiler), "-std=c++20", "-fsyntax-only", "-x", "c++", os.devnull]
    try:
        if subprocess.run(check, capture_output=True).returncode == 0:
            return None
    except (OSError, ValueError):
        pass
    return (
        f"the compiler {compiler!r} does not compile C++20, which Horovod needs with TensorFlow {profile.tensorflow}: "
        "install g++ 10 or later, or name one in CXX"
    )


def build_tools_missing(python: str, env: Mapping[str, str] | None = None) -> list[str]:
    """Lists the missing Debian packages for building Horovod for ``python``; CMake comes from the package index."""
    search = (env or os.environ).get("PATH")
    compiler = (env or os.environ).get("CXX") or "g++"
    missing = [name for name in (compiler, "make") if shutil.which(name, path=search) is None]
    program = "import sysconfig; print(sysconfig.get_path('include'))"
    headers = subprocess.run([python, "-I", "-c", program], capture_output=True, text=True).stdout.strip()
    return missing if (Path(headers) / "Python.h").exists() else [*missing, "python3-dev"]
