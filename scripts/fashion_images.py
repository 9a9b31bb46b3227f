"""Brings the images of Fashion-MNIST: Debian's package, installed as root, or unpacked below ``.hops`` without root.

Standard library only. Where they are already (``HOPS_FASHION_MNIST``, Debian's folder, or unpacked before), it does
nothing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "dags"), str(ROOT / "scripts")]

from fashion.raw import DEBIAN_FOLDER, PACKAGE, VARIABLE, images_folder, missing_file  # noqa: E402
from set_up import fail, install_debian_packages, say  # noqa: E402

UNPACKED = ROOT / ".hops" / PACKAGE


def bring(unpacked: Path = UNPACKED) -> Path:
    """The folder of the four files, which are brought if they are not there.

    Args:
        unpacked: Where Debian's package is unpacked if it cannot be installed.

    Raises:
        FileNotFoundError: they cannot be had; the message says how to get them.
    """
    below = unpacked / DEBIAN_FOLDER.relative_to("/")
    if os.environ.get(VARIABLE):
        return images_folder()
    for folder in (DEBIAN_FOLDER, below):
        if missing_file(folder) is None:
            return folder
    if not install_debian_packages([PACKAGE]) and unpack(unpacked):
        return below
    return images_folder()


def unpack(folder: Path) -> bool:
    """Downloads Debian's package and unpacks it into a folder, which needs no root; whether that worked."""
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        return False
    say(f"apt-get download {PACKAGE}, unpacked into {folder}", indent=0)
    with tempfile.TemporaryDirectory() as scratch:
        if subprocess.run(["apt-get", "download", "--quiet", PACKAGE], cwd=scratch).returncode:
            return False
        folder.mkdir(parents=True, exist_ok=True)
        (package,) = Path(scratch).glob("*.deb")
        return subprocess.run(["dpkg-deb", "-x", str(package), str(folder)]).returncode == 0


def main() -> int:
    """Says where they are; the exit code is 1 where they cannot be had."""
    try:
        say(f"Fashion-MNIST: {bring()}", indent=0)
    except FileNotFoundError as error:
        return fail(str(error))
    return 0


if __name__ == "__main__":
    sys.exit(main())
