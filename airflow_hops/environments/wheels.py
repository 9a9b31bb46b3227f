"""Folders of wheels, from which environments are made on machines without a network.

The wheels are made of what is installed in an environment, so that they need neither a package index nor a compiler,
and those of packages that were compiled, such as Horovod, are among them. Standard library only.
"""

from __future__ import annotations

import base64
import configparser
import csv
import hashlib
import io
import json
import os
import re
import shutil
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from airflow_hops.core.contract.artifacts import BadInput, HopsError
from airflow_hops.core.contract.profiles import read_stamp
from airflow_hops.core.processes.files import staged
from airflow_hops.core.processes.temporary_folders import temporary_folder
from airflow_hops.environments.runtime import fingerprint, pins_of, write_stamp
from airflow_hops.environments.uv_program import NO_BUILD

_OF_THE_INSTALLATION = ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json", "uv_build.json", "uv_cache.json")
"""Files of a ``.dist-info`` that installers write."""
_SHEBANG = re.compile(rb"#!(\S*/bin/python\S*|/bin/sh\n'''exec' .*\n' ''')")
"""First lines of a script, which name the environment's Python; the second form is for long paths."""


def write_wheels(environment: Path, folder: Path) -> list[Path]:
    """Writes a wheel of each package of an environment; returns their paths.

    Raises:
        BadInput: a package is an editable installation.
        HopsError: a file of a package is missing or has been changed.
    """
    infos = sorted(environment.glob("lib/python3*/site-packages/*.dist-info"))
    with ThreadPoolExecutor(os.cpu_count()) as threads:  # zlib and hashes release the lock
        return list(threads.map(lambda info: _write_wheel(info, environment, folder), infos))


def _write_wheel(info: Path, environment: Path, folder: Path) -> Path:
    package = info.name.removesuffix(".dist-info")
    origin = info / "direct_url.json"
    if origin.exists() and json.loads(origin.read_text()).get("dir_info", {}).get("editable"):
        raise BadInput(
            f"{package}: expected no editable installation, which has no wheel; install it without --editable"
        )
    entries = configparser.ConfigParser(delimiters="=", interpolation=None, strict=False)
    entries.optionxform = str  # type: ignore[assignment, method-assign]
    entries.read(info / "entry_points.txt")
    starters = {
        name for kind in ("console_scripts", "gui_scripts") if entries.has_section(kind) for name in entries[kind]
    }
    wheel = folder / f"{package}-{_tags((info / 'WHEEL').read_text())}.whl"
    record = io.StringIO()
    lines = csv.writer(record, lineterminator="\n")
    with (
        staged(wheel) as staging,
        zipfile.ZipFile(staging, "w", zipfile.ZIP_DEFLATED, compresslevel=1, strict_timestamps=False) as archive,
    ):
        with (info / "RECORD").open(newline="") as rows:
            listed = [(name, checksum) for name, checksum, *_ in csv.reader(rows)]
        for name, checksum in listed:
            path = Path(os.path.normpath(info.parent / name))
            made_here = path.parent == info and path.name in _OF_THE_INSTALLATION
            if made_here or path.suffix == ".pyc" or (path.parent == environment / "bin" and path.name in starters):
                continue
            if not path.is_file():
                raise HopsError(f"{package}: {path} is missing; make the environment again with --force")
            with path.open("rb") as file:
                digest, size = hashlib.file_digest(file, "sha256").digest(), path.stat().st_size
            if checksum and checksum != f"sha256={_text(digest)}":
                raise HopsError(
                    f"{package}: {path} is not as it was installed; make the environment again with --force"
                )
            place = _place(path, info.parent, environment, package)
            if path.parent == environment / "bin":
                content = _SHEBANG.sub(b"#!python", path.read_bytes(), count=1)
                archive.writestr(zipfile.ZipInfo.from_file(path, place, strict_timestamps=False), content)
                digest, size = hashlib.sha256(content).digest(), len(content)
            else:
                archive.write(path, place)
            lines.writerow((place, f"sha256={_text(digest)}", size))
        lines.writerow((f"{info.name}/RECORD", "", ""))
        archive.writestr(f"{info.name}/RECORD", record.getvalue())
    return wheel


def _text(digest: bytes) -> str:
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def _tags(wheel: str) -> str:
    """Returns the tags of a ``WHEEL`` file in the form of a file's name: ``cp311-cp311-linux_x86_64``."""
    tags = [line.split("-") for line in re.findall(r"^Tag: *(\S+)", wheel, re.MULTILINE)]
    return "-".join(".".join(dict.fromkeys(part)) for part in zip(*tags, strict=True))


def _place(path: Path, site: Path, environment: Path, package: str) -> str:
    """Returns the name of an installed file in its wheel (https://peps.python.org/pep-0427/)."""
    for root, place in (
        (site, ""),
        (environment / "bin", f"{package}.data/scripts/"),
        (environment, f"{package}.data/data/"),
    ):
        if path.is_relative_to(root):
            return f"{place}{path.relative_to(root).as_posix()}"
    raise HopsError(f"{package}: {path} is outside of {environment}, where no wheel installs it")


def mark_folder(folder: Path, pins: Path) -> None:
    """Records in a folder of wheels, as in an environment, for which pins it is complete."""
    write_stamp(folder, pins, fingerprint(pins))


@contextmanager
def pins_of_wheels(folder: Path) -> Iterator[Path]:
    """Provides the pins of a folder of wheels, beside settings by which uv uses nothing else, within the context.

    Raises:
        BadInput: the folder has no wheels for the pins of this version of the package.
    """
    stamp, pins = read_stamp(folder), pins_of(folder)
    if stamp is None:
        raise BadInput(f"--wheels {folder}: expected a folder that 'airflow hops runtime wheels' has written")
    if stamp[0] != fingerprint(pins):
        raise BadInput(
            f"--wheels {folder}: it has the wheels for other pins ({stamp[2]} {stamp[0][:12]}) than this airflow-hops, "
            f"which has {fingerprint(pins)[:12]}; make it with the same version"
        )
    with temporary_folder("uv") as copy:
        for file in pins.parent.glob("*.txt"):
            shutil.copy(file, copy)
        settings = ("no-index = true", "offline = true", NO_BUILD, f"find-links = [{json.dumps(str(folder))}]")
        (copy / "uv.toml").write_text("".join(f"{line}\n" for line in settings))
        yield copy / pins.name
