"""Programs of other projects, each in an environment of its own."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import urllib.request
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
REQUIREMENTS = {
    "triton": ["tritonclient[all]==2.73.0"],
    "kserve": ["kserve==0.21.0"],
    "mlserver": ["mlserver==1.7.1", "mlserver-sklearn==1.7.1", "skops==0.16.0"],
}


def python_in(folder: Path, name: str) -> Path:
    """Makes an environment in a folder, or HOPS_TEST_STRANGERS if that is set; skips where there is no index."""
    uv = shutil.which("uv", path=f"{REPOSITORY}/.uv/bin:{os.environ['PATH']}")
    folder = Path(os.environ.get("HOPS_TEST_STRANGERS") or folder)
    python = folder / name / "bin" / "python"
    if not python.exists():
        if uv is None:
            pytest.skip("there is no uv, which installs other projects' clients")
        subprocess.run([uv, "venv", "-q", "--python", "3.11", folder / name], check=True)
        install = [uv, "pip", "install", "-q", "--python", python, *REQUIREMENTS[name]]
        installed = subprocess.run(install, capture_output=True, text=True)
        if installed.returncode:
            shutil.rmtree(folder / name)
            pytest.skip(f"{REQUIREMENTS[name]} cannot be installed: {installed.stderr[-500:]}")
    return python


def free_port() -> int:
    """Returns a port of this machine that nobody listens at."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
    return port


def is_ready(url: str) -> bool:
    """Returns whether a server answers."""
    try:
        with urllib.request.urlopen(url, timeout=60):
            return True
    except OSError:
        return False
