"""Reads with this version what the last released one writes: ``make upgrade-test``.

The last tag ``v…`` before this commit is checked out into a temporary folder. Its own code writes a small store, models
and captured requests in the runtime environment, as for the tests of the profiles, which then read them here.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
WRITER = "tests/ml/portable/write_portable.py"


def last_tag(repository: Path) -> str:
    """Returns the last tag ``v…`` before the present commit. Raises SystemExit if there is none."""
    command = ["git", "-C", str(repository), "describe", "--tags", "--abbrev=0", "--match", "v[0-9]*", "HEAD^"]
    answer = subprocess.run(command, capture_output=True, text=True)
    if answer.returncode:
        raise SystemExit(f"no version to upgrade from: no tag v… before this commit ({answer.stderr.strip()})")
    return answer.stdout.strip()


def main() -> None:
    """Writes with the last version, and reads with this one."""
    tag, python = last_tag(REPOSITORY), REPOSITORY / ".venv-runtime/bin/python"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, tag)
        subprocess.run(["git", "-C", REPOSITORY, "worktree", "add", "--quiet", "--detach", folder, tag], check=True)
        try:
            (folder / ".venv").symlink_to(REPOSITORY / ".venv")
            paths = {"PYTHONPATH": ":".join(str(folder / each) for each in (".", "dags", "tests", "tests/ml"))}
            print(f"{tag} writes", flush=True)
            subprocess.run([python, folder / WRITER], cwd=folder, env={**os.environ, **paths}, check=True)
            print("this version reads", flush=True)
            tests = ("-m", "pytest", "--confcutdir", "tests/ml", "tests/ml/portable")
            written = {"HOPS_TEST_PORTABLE": str((folder / WRITER).parent)}
            sys.exit(subprocess.run([python, *tests], cwd=REPOSITORY, env={**os.environ, **written}).returncode)
        finally:
            subprocess.run(["git", "-C", REPOSITORY, "worktree", "remove", "--force", folder], check=True)


if __name__ == "__main__":
    main()
