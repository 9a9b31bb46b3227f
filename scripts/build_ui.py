"""Builds the pages (``ui/``) into the package with Node.js, or checks them: ``python scripts/build_ui.py [check]``.

Needs the standard library alone: the set-up and the wheel's build use it too. What was built from the same sources is
left alone.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "ui"
MODULES = SOURCES / "node_modules"
STATIC = ROOT / "airflow_hops" / "web" / "static"
BUILT_FROM = STATIC / "sources.sha256"
INSTALLED_FROM = MODULES / "lock.sha256"
CHECKED = MODULES / "checked.sha256"
OLDEST_NODE = (20, 19)
_GENERATED = {"node_modules", "schema.ts"}


class BuildFailed(Exception):
    """The pages cannot be built; the message says what is needed, or what npm said."""


def fresh() -> bool:
    """Whether the pages are built from the present sources, or there are none to build them from."""
    if not SOURCES.is_dir():
        return (STATIC / "hops.umd.js").exists()
    try:
        return BUILT_FROM.read_text() == fingerprint()
    except OSError:
        return False


def fingerprint(*, tests: bool = False) -> str:
    """SHA-256 (hex) of the sources' names and contents, with those of their tests or without."""
    digest = hashlib.sha256()
    for path in _sources(SOURCES, tests):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(SOURCES).as_posix()} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()


def node_missing() -> str | None:
    """Returns the program that a build lacks, in words; None if nothing is missing."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        return (
            f"{'npm' if node else 'Node.js'} was not found; Node.js {_dotted(OLDEST_NODE)} or newer and npm are needed"
        )
    version_text = subprocess.run([node, "--version"], capture_output=True, text=True).stdout.strip()
    version = re.match(r"v(\d+)\.(\d+)", version_text)
    if version is None or (int(version[1]), int(version[2])) < OLDEST_NODE:
        return f"{node} is {version_text or 'of no known version'}; {_dotted(OLDEST_NODE)} or newer is needed"
    return None


def build(say: Callable[[str], object] = print) -> bool:
    """Builds the pages, unless that has been done; returns whether anything was done.

    Raises:
        BuildFailed: Node.js is missing or too old, or npm failed.
    """
    if fresh():
        return False
    if not SOURCES.is_dir():
        raise BuildFailed(f"there is neither {SOURCES} nor a build of it in {STATIC}")
    _install(say)
    sources = fingerprint()
    _npm("run", "build")
    BUILT_FROM.write_text(sources)
    size = (STATIC / "hops.umd.js").stat().st_size
    say(f"the pages of the web UI: {size / 1024:.0f} KiB")
    return True


def check() -> None:
    """Checks types, style and format of the sources, and runs their unit tests, unless the same have passed before.

    Raises:
        BuildFailed: Node.js is missing, or something is not as it should be; the message holds what.
    """
    _install(print)
    sources = fingerprint(tests=True)
    if CHECKED.exists() and CHECKED.read_text() == sources:
        return
    _npm("run", "check")
    _npm("test")
    CHECKED.write_text(sources)


def _install(say: Callable[[str], object]) -> None:
    missing = node_missing()
    if missing is not None:
        raise BuildFailed(missing)
    lock = hashlib.sha256((SOURCES / "package-lock.json").read_bytes()).hexdigest()
    if INSTALLED_FROM.exists() and INSTALLED_FROM.read_text() == lock:
        return
    if MODULES.is_symlink():
        MODULES.unlink()  # another checkout's, which npm would empty
    say("npm ci: what the pages are built with")
    _npm("ci")
    INSTALLED_FROM.write_text(lock)


def _npm(*arguments: str) -> None:
    command = ["npm", "--loglevel=error", *arguments]
    done = subprocess.run(
        command, cwd=SOURCES, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode:
        raise BuildFailed(f"'{' '.join(command)}' failed in {SOURCES}:\n{done.stdout[-6000:]}")


def _sources(folder: Path, tests: bool) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if path.name in _GENERATED or path.suffix == ".md" or (".test." in path.name and not tests):
            continue
        if path.is_dir():
            yield from _sources(path, tests)
        else:
            yield path


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(str(part) for part in version)


def main() -> int:
    """Builds, or checks where there is Node.js; returns the exit code."""
    only_check = sys.argv[1:] == ["check"]
    if only_check and (missing := node_missing()) is not None:
        print(f"the pages of the web UI are not checked: {missing}")
        return 0
    try:
        if only_check:
            check()
        elif not build():
            print("the pages of the web UI are built already")
    except BuildFailed as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
