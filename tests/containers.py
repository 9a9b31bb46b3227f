"""Containers of the images that ``make images`` builds, started by buildah."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil
import pytest
from step_runner import REPOSITORY

USER = 50000
RUNTIME_IMAGE, AIRFLOW_IMAGE = "localhost/airflow-hops-runtime", "localhost/airflow-hops"


@pytest.fixture(scope="session")
def built_images() -> None:
    """Both images, built if they are not those of the package."""
    missing = [program for program in ("buildah", "debootstrap") if shutil.which(program) is None]
    if missing or os.geteuid() != 0:
        pytest.skip(f"images are built by root with buildah and debootstrap; missing: {' '.join(missing) or 'root'}")
    subprocess.run(["make", "images"], cwd=REPOSITORY, check=True)


class Container:
    """A container of an image, without isolation but for its root.

    Args:
        image: Its name.
        log: File for the output of its commands.
        volumes: ``source:target`` or ``source:target:ro``.
        variables: Its environment.
        hosts: Addresses by name, for its ``/etc/hosts``.
        prefix: Command that runs others in a network namespace.
    """

    def __init__(
        self,
        image: str,
        log: Path,
        volumes: Sequence[str],
        variables: Mapping[str, str],
        *,
        hosts: Mapping[str, str] = {},
        prefix: Sequence[str] = (),
    ) -> None:
        added = [f"--add-host={name}:{address}" for name, address in hosts.items()]
        command = ["buildah", "from", "--pull-never", *added, image]
        self.name = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
        self._log, self._prefix = log, prefix
        self._options = [f"--volume={volume}" for volume in volumes]
        self._options += [f"--env={name}={value}" for name, value in variables.items()]
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def entrypoint(self) -> list[str]:
        """The image's entry point, which buildah does not run by itself."""
        described = json.loads(subprocess.check_output(["buildah", "inspect", self.name]))
        return list(described["OCIv1"]["config"]["Entrypoint"])

    def start(self, *command: str) -> subprocess.Popen[bytes]:
        """Starts a command."""
        run = [
            *self._prefix,
            "buildah",
            "run",
            "--isolation=chroot",
            "--hostname=localhost",
            *self._options,
            self.name,
            "--",
            *command,
        ]
        with self._log.open("ab") as log:
            self._processes.append(subprocess.Popen(run, stdout=log, stderr=log))
        return self._processes[-1]

    def run(self, *command: str) -> str:
        """Returns what a command prints."""
        begun = len(self.log())
        code = self.start(*command).wait(580)
        output = self.log()[begun:]
        assert code == 0, output[-5000:]
        return output

    def log(self) -> str:
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def remove(self) -> None:
        """Ends its processes, and removes it."""
        for process in self._processes:
            if process.poll() is None:
                for child in psutil.Process(process.pid).children(recursive=True):
                    child.terminate()
                process.wait(60)
        subprocess.run(["buildah", "rm", self.name], check=True, capture_output=True)


def own_folder(path: Path) -> Path:
    """Makes a folder that the user of containers may write to."""
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(0o755)
    os.chown(path, USER, 0)
    return path
