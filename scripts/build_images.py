"""Builds the images airflow-hops-runtime and airflow-hops with buildah, from the wheel in ``dist/``.

Needs root and Debian's packages buildah and debootstrap. Where the registry of the base image cannot be reached,
debootstrap makes the base from Debian's packages. Arguments are passed to ``buildah build``, such as
``--build-arg=CUDA=1``. Images of the same wheel, Dockerfile and arguments are left alone.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCKERFILE = ROOT / "docker" / "Dockerfile"
REGISTRY_BASE = "docker.io/library/debian:trixie-slim"
OWN_BASE = "localhost/debian-trixie"
IMAGES = {"runtime": "localhost/airflow-hops-runtime", "airflow": "localhost/airflow-hops"}
LABEL = "airflow-hops.built-from"


def main(arguments: list[str]) -> int:
    """Builds both images unless they are up to date; returns the exit code."""
    missing = [program for program in ("buildah", "debootstrap") if shutil.which(program) is None]
    if missing or os.geteuid() != 0:
        needed = f"apt-get install {' '.join(missing)}" if missing else "run it as root"
        print(f"images: buildah as root, and debootstrap, are needed: {needed}", file=sys.stderr)
        return 1
    inputs = [DOCKERFILE, ROOT / "requirements" / "airflow.txt", *sorted((ROOT / "dist").glob("*.whl"))]
    built_from = hashlib.sha256(b"".join(map(Path.read_bytes, inputs)) + repr(arguments).encode()).hexdigest()
    if all(_label(image) == built_from for image in IMAGES.values()):
        print(f"{', '.join(IMAGES.values())}: up to date")
        return 0
    pins = hashlib.sha256(b"".join(map(Path.read_bytes, sorted((ROOT / "requirements").iterdir())))).hexdigest()
    command = [
        "buildah",
        "build",
        "--layers",
        "--force-rm",
        f"--build-arg=PINS={pins}",
        "--isolation=chroot",
        "--pull-never",
        f"--build-arg=BASE={_base()}",
    ]
    with tempfile.TemporaryDirectory() as folder:
        secrets = _secrets(Path(folder))
        for target, image in IMAGES.items():
            options = [f"--target={target}", f"--tag={image}", f"--label={LABEL}={built_from}"]
            options += [f"--secret=id={name},src={path}" for name, path in secrets.items()]
            if (code := subprocess.call([*command, *options, *arguments, f"--file={DOCKERFILE}", str(ROOT)])) != 0:
                return code
    # Layers that no image uses are those of the environments' build: gigabytes.
    if subprocess.call(["buildah", "rmi", "--prune"], stdout=subprocess.DEVNULL) != 0:
        print("images: built; layers that a container uses stay (`buildah containers` lists them)", file=sys.stderr)
    return 0


def _label(image: str) -> str:
    """Returns the hash of what an image was built from; empty if there is no such image."""
    template = f'{{{{index .OCIv1.Config.Labels "{LABEL}"}}}}'
    command = ["buildah", "inspect", "--type=image", f"--format={template}", image]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()


def _secrets(folder: Path) -> dict[str, Path]:
    """Returns the secrets of the build, by id: pip's package index, and the certificates that this machine trusts."""
    settings = {"index-url": _pip_setting("index-url")}
    secrets = {"pip.conf": folder / "pip.conf"}
    certificates = Path(_pip_setting("cert") or "/etc/ssl/certs/ca-certificates.crt")
    if certificates.exists():
        secrets["certificates"], settings["cert"] = certificates, "/run/secrets/certificates"
    lines = [f"{name} = {value}\n" for name, value in settings.items() if value]
    secrets["pip.conf"].write_text("".join(["[global]\n", *lines]))
    return secrets


def _pip_setting(name: str) -> str:
    command = [sys.executable, "-m", "pip", "config", "get", f"global.{name}"]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()


def _base() -> str:
    """Returns the base image: the registry's, or one made from Debian's packages."""
    if subprocess.call(["buildah", "pull", "--policy=missing", REGISTRY_BASE], stdout=subprocess.DEVNULL) == 0:
        return REGISTRY_BASE
    if subprocess.run(["buildah", "inspect", "--type=image", OWN_BASE], capture_output=True).returncode != 0:
        print(f"{REGISTRY_BASE} cannot be pulled: making {OWN_BASE} from Debian's packages", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder, "root")
            subprocess.check_call(
                ["debootstrap", "--variant=minbase", "--include=ca-certificates", "trixie", str(root)]
            )
            shutil.rmtree(root / "var/cache/apt")
            Path(folder, "Dockerfile").write_text('FROM scratch\nCOPY root/ /\nCMD ["bash"]\n')
            subprocess.check_call(["buildah", "build", "--isolation=chroot", f"--tag={OWN_BASE}", folder])
    return OWN_BASE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
