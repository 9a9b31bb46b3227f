"""Archives of the runtime environment, which a Spark cluster unpacks for the executors of an application.

A virtual environment depends on its folder and on the Python that it was made with. An archive has that Python, its
standard library and all packages in one tree, in which Python finds them wherever the tree is. Only libraries of the
operating system are not in it. Standard library only.
"""

from __future__ import annotations

import io
import json
import os
import platform
import re
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

from airflow_hops.core.errors import BadInput, HopsError
from airflow_hops.core.processes.files import staged
from airflow_hops.core.processes.temporary_folders import temporary_folder
from airflow_hops.core.profiles import base_of, is_standalone
from airflow_hops.runner.environments.named import LINK_NAME, named_state, packages_of, python_version
from airflow_hops.runner.environments.runtime import environment_state, pins_fingerprint

_NAME = "hops-runtime.json"
"""The first file of an archive: its :class:`PackedRuntime`."""
_UNUSED = re.compile(r"(config-3.*|dist-packages|idlelib|site-packages|test)|.*/(pyspark/jars|tensorflow/include)")
"""Folders, relative to that of the standard library, that are packed separately, or that executors do not read."""
_QUESTION = """
import json, os, sys, sysconfig
library = next((line.split(maxsplit=5)[-1].strip() for line in open("/proc/self/maps") if "/libpython" in line), "")
print(json.dumps([os.path.realpath(sys.executable), library, sysconfig.get_path("stdlib"), sys.platlibdir]))
"""
_LIBRARY = b"$ORIGIN/../lib"


@dataclass(frozen=True)
class PackedRuntime:
    """Content of an archive.

    Attributes:
        python: Version of Python.
        machine: Processor, as ``x86_64``.
        packages: Versions by package.
    """

    python: str
    machine: str
    packages: dict[str, str]

    @classmethod
    def of(cls, runtime: Path) -> PackedRuntime:
        """Describes an archive of an environment, without starting its Python."""
        return cls(python_version(runtime), platform.machine(), packages_of(runtime))

    @classmethod
    def read(cls, stream: BinaryIO, name: str) -> PackedRuntime:
        """Reads the first file of an archive; ``name`` is for errors.

        Raises:
            BadInput: the file is not an archive of ``airflow hops runtime pack``.
        """
        try:
            with tarfile.open(fileobj=stream, mode="r|gz") as archive:
                member = archive.next()
                content = archive.extractfile(member) if member and member.name == _NAME else None
                return cls(**json.load(content)) if content else _refuse(name, f"it does not begin with {_NAME}")
        except (tarfile.TarError, ValueError, TypeError, EOFError) as error:
            return _refuse(name, str(error))

    def difference(self, other: PackedRuntime) -> str:
        """Describes the first difference between this archive and another environment; empty if there is none."""
        own, expected = (
            {"Python": runtime.python, "processor": runtime.machine, **runtime.packages} for runtime in (self, other)
        )
        names = (name for name in {**own, **expected} if own.get(name) != expected.get(name))
        return next((f"{name} {own.get(name, '(none)')} instead of {expected.get(name, 'none')}" for name in names), "")


def _refuse(name: str, reason: str) -> PackedRuntime:
    raise BadInput(f"{name}: expected an archive of 'airflow hops runtime pack' ({reason})")


def pack(runtime: Path, target: Path) -> None:
    """Writes an archive of an environment to a ``.tar.gz`` file.

    Raises:
        BadInput: the environment is not complete, or its Python works only where it is installed.
        HopsError: its Python does not start.
    """
    base = base_of(runtime)
    state = environment_state(base, pins_fingerprint(base)) if runtime == base else named_state(runtime)
    if state.name not in ("good", "unmanaged"):
        raise BadInput(f"{runtime}: {state.detail}; run 'airflow hops runtime create' first")
    answer = _run(base / "bin" / "python", _QUESTION)
    executable, library, standard, library_folder = json.loads(answer)
    description = json.dumps(asdict(PackedRuntime.of(runtime))).encode()
    with (
        temporary_folder("packed") as folder,
        staged(target) as staging,
        tarfile.open(staging, "w:gz", compresslevel=1, dereference=True) as archive,
    ):
        first = tarfile.TarInfo(_NAME)
        first.size = len(description)
        archive.addfile(first, io.BytesIO(description))
        _relocate(folder, Path(executable), library, Path(standard))
        modules = f"{library_folder}/{Path(standard).name}"
        # Debian's Python looks for packages here unless it is in a virtual environment.
        link = tarfile.TarInfo("lib/python3/dist-packages")
        link.type, link.linkname = tarfile.SYMTYPE, f"../../{modules}/site-packages"
        archive.addfile(link)
        sources = [(folder, ""), (Path(standard), f"{modules}/")]
        environments = [runtime] if is_standalone(runtime) else dict.fromkeys((runtime, base))
        sites = [site for environment in environments for site in environment.glob("lib/python3*/site-packages")]
        # An executor would compile what it imports whenever the archive is unpacked; a read-only folder stays as is.
        subprocess.run([base / "bin" / "python", "-P", "-m", "compileall", "-qq", "-j0", *sites], capture_output=True)
        sources += [(site, f"{modules}/site-packages/") for site in sites]
        packed: set[str] = set()
        for source, place in sources:
            for path in _files(source, place.removeprefix(f"{modules}/")):
                name = f"{place}{path.relative_to(source).as_posix()}"
                if name not in packed:  # a package may be in both environments
                    packed.add(name)
                    archive.add(path, name, filter=_without_owner)


def _relocate(folder: Path, executable: Path, library: str, standard: Path) -> None:
    """Copies Python's program to ``bin``, and its shared library, if any, to ``lib``, where the program finds it.

    Raises:
        BadInput: the program finds its library only where it is installed.
    """
    python, content = folder / "bin" / "python", executable.read_bytes()
    if library:
        (folder / "lib").mkdir()
        shutil.copyfile(library, folder / "lib" / Path(library).name)
        # The linker's search path is replaced in the program, whose size must not change.
        path = str(Path(library).parent).encode()
        content = content.replace(path + b"\0", _LIBRARY.ljust(len(path), b"\0") + b"\0")
    python.parent.mkdir()
    python.write_bytes(content)
    python.chmod(0o755)
    if library and library in _run(python, "print(*open('/proc/self/maps'))", PYTHONHOME=str(standard.parent.parent)):
        version = standard.name.removeprefix("python")
        raise BadInput(
            f"Python {executable} loads {library}, and would not start on hosts without it; make the environment with "
            f"a Python of uv, which can be moved: 'uv python install {version}', 'airflow hops runtime create --force "
            f"--python $(uv python find --managed-python {version})'"
        )


def _run(python: Path, program: str, **variables: str) -> str:
    """Runs a program in Python, and returns its output."""
    command, env = [str(python), "-S", "-c", program], {"PATH": os.defpath, **variables}
    result = subprocess.run(command, env=env, cwd="/", capture_output=True, text=True)
    if result.returncode:
        raise HopsError(f"{python} does not start: {result.stderr[-500:]}")
    return result.stdout


def _files(folder: Path, place: str) -> Iterator[Path]:
    """Yields the files of a folder that executors need; ``place`` is its path relative to the standard library."""
    for parent, folders, names in os.walk(folder, followlinks=True):
        within = place + f"{Path(parent).relative_to(folder).as_posix()}/".removeprefix("./")
        folders[:] = [name for name in folders if not _UNUSED.fullmatch(within + name)]
        paths = (Path(parent, name) for name in names if name != LINK_NAME)
        yield from (path for path in paths if path.exists())  # links may lead nowhere


def _without_owner(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member
