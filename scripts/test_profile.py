"""Runs the tests of a profile in a Debian root of its own: ``python scripts/test_profile.py current [COMMAND...]``.

Makes the root with debootstrap, copies the checkout into it, and runs a command there, by default ``make test``, which
makes both environments from the root's own Python. What is there from an earlier run is used again. Needs root, and
Debian's ``debootstrap``. ``HOPS_ROOTS`` names the folder of the roots, by default ``.hops/roots`` in the checkout.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RELEASES = {"base": "bookworm", "current": "trixie"}
JAVA = {"base": "openjdk-17-jre-headless", "current": "openjdk-21-jre-headless"}
PACKAGES = (
    *("python3-venv", "python3-dev", "g++", "make", "git", "curl", "procps", "iproute2", "libgomp1", "openssl"),
    *("openssh-client", "openssh-server", "chromium", "postgresql", "redis-server"),
)
PLACE = "srv/airflow-hops"
DONE = "hops-root.txt"
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
PASSED = ("PIP_", "UV_", "SSL_CERT", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy")


def main(profile: str, *command: str) -> int:
    """Makes the root, and returns the exit code of the command in it."""
    if profile not in RELEASES:
        print(f"PROFILE={profile}: expected {' or '.join(RELEASES)}", file=sys.stderr)
        return 2
    missing = [name for name in ("debootstrap", "unshare", "chroot") if shutil.which(name) is None]
    if os.geteuid() or missing:
        need = f"apt-get install {' '.join(missing)}" if missing else "it mounts and changes the root: run it as root"
        print(f"the tests of a profile in a Debian root: {need}", file=sys.stderr)
        return 2
    if "HOPS_IN_NAMESPACE" not in os.environ:  # mounts end with the namespace, also after a kill
        again = ["unshare", "--mount", "--propagation", "private", sys.executable, __file__, profile, *command]
        return subprocess.run(again, env={**os.environ, "HOPS_IN_NAMESPACE": "1"}).returncode
    root = Path(os.environ.get("HOPS_ROOTS") or ROOT / ".hops" / "roots") / RELEASES[profile]
    make_root(root, profile)
    mount(root)
    if not (root / DONE).exists():
        inside(root, ["apt-get", "update", "--quiet"], check=True)
        install = ["apt-get", "install", "--yes", "--quiet", "--no-install-recommends", *PACKAGES, JAVA[profile]]
        inside(root, install, check=True)
        (root / DONE).touch()
    copy_checkout(root / PLACE)
    return inside(root, list(command) or ["make", "test"])


def make_root(root: Path, profile: str) -> None:
    """Makes a minimal Debian, unless it exists."""
    if (root / "etc" / "debian_version").exists():
        return
    partial = root.with_name(f"{root.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.parent.mkdir(parents=True, exist_ok=True)
    command = ["debootstrap", "--variant=minbase", "--include=ca-certificates,python3", RELEASES[profile], str(partial)]
    subprocess.run([*command, *mirror()], check=True)
    partial.rename(root)


def mirror() -> list[str]:
    """Returns the address that apt is configured with; empty for debootstrap's own."""
    targets = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(REPO_URI)"], capture_output=True, text=True
    ).stdout
    return [uri for uri in targets.splitlines() if uri.rstrip("/").endswith("/debian")][:1]


def mount(root: Path) -> None:
    """Mounts what programs in the root need, and gives it this machine's names and certificates."""
    subprocess.run(["mount", "--bind", str(root), str(root)], check=True)  # for network namespaces, which mount / anew
    for kind, name in (("proc", "proc"), ("sysfs", "sys"), ("tmpfs", "run")):
        subprocess.run(["mount", "-t", kind, kind, str(root / name)], check=True)
    subprocess.run(["mount", "--rbind", "/dev", str(root / "dev")], check=True)
    for file in (Path("/etc/resolv.conf"), Path("/etc/hosts"), CERTIFICATES):
        if file.exists():
            shutil.copyfile(file, root / file.relative_to("/"))


def checkout_files() -> set[str]:
    """Returns the files that git knows or would add."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    return {name for name in names if (ROOT / name).is_file()}


def copy_checkout(folder: Path) -> None:
    """Copies the files that git knows or would add, and the built pages with the judge of their accessibility.

    Those copied before and gone since are removed.
    """
    names = checkout_files()
    names |= {str(file.relative_to(ROOT)) for file in (ROOT / "airflow_hops/web/static").rglob("*") if file.is_file()}
    names.add("ui/node_modules/axe-core/axe.min.js")
    names = {name for name in names if (ROOT / name).is_file()}
    folder.mkdir(parents=True, exist_ok=True)
    copied = folder.with_name("copied.txt")
    for name in set(copied.read_text().splitlines()) - names if copied.exists() else ():
        (folder / name).unlink(missing_ok=True)
    for name in names:
        source, target = ROOT / name, folder / name
        # Unchanged files keep their time, and so their bytecode.
        if not target.exists() or source.stat().st_mtime_ns != target.stat().st_mtime_ns:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)
    copied.write_text("\n".join(sorted(names)))
    if not (folder / ".git").exists():
        subprocess.run(["git", "init", "--quiet", str(folder)], check=True)
    subprocess.run(["git", "-C", str(folder), "add", "--all"], check=True)


def inside(root: Path, command: list[str], *, check: bool = False) -> int:
    """Runs a command in the copy of the checkout, and returns its exit code."""
    environment = {name: value for name, value in os.environ.items() if name.startswith(PASSED)}
    environment |= {"HOME": "/root", "LANG": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"}
    environment["PATH"] = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    (root / PLACE).mkdir(parents=True, exist_ok=True)
    program = f"cd /{PLACE} && exec {shlex.join(command)}"
    return subprocess.run(["chroot", str(root), "/bin/sh", "-c", program], env=environment, check=check).returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
