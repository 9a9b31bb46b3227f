"""Runs uv with the user's settings, pip's where uv has none, and the settings of Horovod's build.

Standard library only.
"""

from __future__ import annotations

import configparser
import contextlib
import hashlib
import json
import os
import platform
import re
import shlex
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

from airflow_hops.core.errors import BadInput, HopsError
from airflow_hops.core.processes.temporary_folders import temporary_folder

Say = Callable[[str], None]

_COMPILER_VARIABLES = (
    *("AR", "CC", "CFLAGS", "CPPFLAGS", "CXX", "CXXFLAGS", "LDFLAGS"),
    *("CMAKE_TOOLCHAIN_FILE", "HOROVOD_BUILD_ARCH_FLAGS"),
)
_CPU_FLAGS = {"avx", "f16c", "fma"}
"""Instructions that Horovod's build uses if the machine has them."""
_TOOLCHAIN = "horovod.cmake"
"""CMake file that shortens Horovod's build."""


HorovodBuild = tuple[Mapping[str, str], Mapping[str, str]]
"""Settings of Horovod's build in addition to ``uv.toml``: those by which uv caches builds, and paths."""


def uv_variables(env: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment variables for uv: the caller's, without those that would change the installation."""
    dropped = ("PYTHONDONTWRITEBYTECODE", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "CONDA_PREFIX", "UV_NO_CONFIG")
    inherited = {name: value for name, value in env.items() if name not in dropped}
    if env.get("PYTHONDONTWRITEBYTECODE"):  # each start would compile again what it imports
        inherited.setdefault("UV_COMPILE_BYTECODE", "1")
    # Horovod 0.28: under make, the build would inherit make's flags, and compile on one core.
    # Takes package index, links and certificates from pip's configuration, which uv does not read.
    home = Path(env.get("HOME") or "~").expanduser()
    user_folder = Path(env.get("XDG_CONFIG_HOME") or home / ".config")
    settings = configparser.ConfigParser(interpolation=None, strict=False)
    files = [Path("/etc/pip.conf"), home / ".pip" / "pip.conf", user_folder / "pip" / "pip.conf"]
    if named := env.get("PIP_CONFIG_FILE"):
        files.append(Path(named))
    with contextlib.suppress(configparser.Error, UnicodeDecodeError):
        settings.read(files)
    index = env.get("PIP_INDEX_URL") or settings.get("global", "index-url", fallback="")
    certificates = env.get("PIP_CERT") or settings.get("global", "cert", fallback="")
    settings_of_pip = {}
    has_settings = any((folder / "uv" / "uv.toml").exists() for folder in (Path("/etc"), user_folder))
    if index and not has_settings and not {"UV_INDEX_URL", "UV_DEFAULT_INDEX"} & env.keys():
        settings_of_pip["UV_DEFAULT_INDEX"] = index
    links = env.get("PIP_FIND_LINKS") or settings.get("global", "find-links", fallback="") or ""
    # uv 0.13: fails if a folder does not exist, where pip only warns.
    found_links = [link for link in links.split() if "://" in link or Path(link).expanduser().exists()]
    if found_links and "UV_FIND_LINKS" not in env:
        settings_of_pip["UV_FIND_LINKS"] = ",".join(found_links)
    if certificates:
        settings_of_pip["SSL_CERT_FILE"] = certificates
    return {**settings_of_pip, **inherited, "MAKEFLAGS": f"-j{(os.cpu_count() or 1) + 1}"}


def requirements_file(name: str) -> Path:
    """Returns a file of the folder ``requirements``: inside the package in a wheel, beside it in a checkout."""
    package = Path(__file__).parents[2]
    inside = package / "requirements" / name
    return inside if inside.exists() else package.parent / "requirements" / name


def _build_fingerprint(env: Mapping[str, str]) -> str:
    """Returns a hash (hex) of inputs of Horovod's build besides its settings: C library, compiler, processor.

    uv caches builds by version, Python, dependencies (such as TensorFlow's version) and variables. This hash is one of
    the variables, so that a home that several machines share, or that outlives an upgrade, holds a build for each.
    """
    version = b""
    with contextlib.suppress(OSError, ValueError):  # no such compiler, which Horovod's build reports
        compiler = shlex.split(env.get("CXX") or "g++")
        version = subprocess.run([*compiler, "--version"], capture_output=True, stdin=subprocess.DEVNULL).stdout
    toolchain = requirements_file(_TOOLCHAIN).read_text()
    cpu = Path("/proc/cpuinfo")
    flags = re.search(r"^flags\s*:(.*)$", cpu.read_text() if cpu.exists() else "", re.MULTILINE)
    has = sorted(_CPU_FLAGS.intersection(flags[1].split() if flags else ()))
    flags_set = [f"{name}={env[name]}" for name in _COMPILER_VARIABLES if env.get(name)]
    facts = [*platform.libc_ver(), version.decode(errors="replace"), *has, *flags_set, toolchain]
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()


def run_uv(command: list[str], settings: Path, say: Say, build: HorovodBuild | None = None) -> None:
    """Runs uv, and passes each line of output to ``say``.

    The ``settings``, a ``uv.toml`` which need not exist, are used in addition to the user's own.

    Raises:
        HopsError: uv failed.
    """
    settings_of_build, places = build or ({}, {})
    env = {**uv_variables(os.environ), **places}
    # uv 0.13: reads the settings of its working directory, or of a project around it (an installed package is often
    # inside one); --config-file would hide the user's own settings, such as the package index.
    with temporary_folder("uv") as folder:
        if settings.exists():
            variables = {"HOPS_BUILD": _build_fingerprint(env), **settings_of_build}
            env.setdefault("CMAKE_TOOLCHAIN_FILE", str(requirements_file(_TOOLCHAIN)))
            added = "".join(f"{name} = {json.dumps(value)}, " for name, value in variables.items())
            (folder / settings.name).write_text(settings.read_text().replace("horovod = { ", "horovod = { " + added))
        process = subprocess.Popen(
            command,
            env=env,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        assert process.stdout is not None
        try:
            for line in process.stdout:
                # The lists of packages and of Horovod's files are noise.
                if not line.startswith((" + ", " - ", " ~ ")) and not line.lstrip().startswith(
                    ("copying ", "creating ")
                ):
                    say(line.rstrip())
            code = process.wait()
        except BaseException:
            process.terminate()
            process.wait()
            raise
    if code:
        raise HopsError(f"'{' '.join(command[:3])}' ended with exit code {code}; run it again to continue")


def located(requirement: str) -> str:
    """Returns a requirement that does not depend on the working directory: of a path, ``NAME @ file:///…``.

    Raises:
        BadInput: there is no such wheel or sdist, or the folder is not a project with a name in ``pyproject.toml``.
    """
    is_file = requirement.partition("[")[0].endswith((".whl", ".tar.gz")) and "://" not in requirement
    if not is_file and not requirement.startswith((".", "/", "~")):
        return requirement
    import tomllib  # needed here alone, and no DAG file needs to read it

    place, bracket, extras = requirement.partition("[")
    path = Path(place).expanduser().resolve()
    if path.is_file():
        is_wheel = path.suffix == ".whl"
        name = path.name.partition("-")[0] if is_wheel else path.name.removesuffix(".tar.gz").rpartition("-")[0]
    elif (project := path / "pyproject.toml").is_file():
        name = str(tomllib.loads(project.read_text(encoding="utf-8")).get("project", {}).get("name", ""))
    else:
        name = ""
    if not name:
        raise BadInput(
            f"{requirement!r}: {path} is neither a wheel nor an sdist, nor a folder whose pyproject.toml has a name "
            "under [project]"
        )
    return f"{name}{bracket}{extras} @ {path.as_uri()}"


def package_name(requirement: str) -> str:
    """Returns the normalized name of a requirement's package."""
    match = re.match(r"[A-Za-z0-9][A-Za-z0-9._-]*", requirement)
    if match is None:
        raise BadInput(f"{requirement!r}: expected a package's name, and a version if need be, as in 'shap==0.46'")
    return re.sub(r"[-_.]+", "-", match[0]).lower()
