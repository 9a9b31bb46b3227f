"""Reads with this version what the last released one writes: ``make upgrade-test``.

The last tag ``v…`` before this commit, or in a clone without tags the commit ``RELEASED``, is checked out into a
temporary folder. Its own code writes a small store, models, captured requests and the state of monitors in the runtime
environment, as for the tests of the profiles, which then read them here.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
RELEASED = "e5b1bd8dfc2f2d335bb156b7d1fe0a20d213d748"
"""The commit of version 0.1.0."""
WRITER, STATE_WRITER = "tests/ml/portable/write_portable.py", "tests/ml/portable/write_state.py"
"""Programs of the other version. Version 0.1.0 has no second one; tests/written_before/state.json is what it wrote."""


def last_version(repository: Path) -> str:
    """Returns the last tag ``v…`` before the present commit, or without one ``RELEASED``.

    Raises:
        SystemExit: neither is there.
    """
    git = ["git", "-C", str(repository)]
    described = [*git, "describe", "--tags", "--abbrev=0", "--match", "v[0-9]*", "HEAD^"]
    for command in (described, [*git, "rev-parse", "--verify", "--short", f"{RELEASED}^{{commit}}"]):
        answer = subprocess.run(command, capture_output=True, text=True)
        if answer.returncode == 0:
            return answer.stdout.strip()
    raise SystemExit(f"no version to upgrade from: no tag v… before this commit, and no commit {RELEASED[:8]}")


def main() -> None:
    """Writes with the last version, and reads with this one."""
    version, python = last_version(REPOSITORY), REPOSITORY / ".venv-runtime/bin/python"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, version)
        subprocess.run(["git", "-C", REPOSITORY, "worktree", "add", "--quiet", "--detach", folder, version], check=True)
        try:
            (folder / ".venv").symlink_to(REPOSITORY / ".venv")
            paths = {"PYTHONPATH": ":".join(str(folder / each) for each in (".", "dags", "tests", "tests/ml"))}
            print(f"{version} writes", flush=True)
            environment, state = {**os.environ, **paths}, Path(name, "state.json")
            subprocess.run([python, folder / WRITER], cwd=folder, env=environment, check=True)
            written = {"HOPS_TEST_PORTABLE": str((folder / WRITER).parent)}
            if (folder / STATE_WRITER).exists():
                subprocess.run([python, folder / STATE_WRITER, state], cwd=folder, env=environment, check=True)
                written["HOPS_TEST_STATE"] = str(state)
            print("this version reads", flush=True)
            tests = ("-m", "pytest", "--confcutdir", "tests/ml", "tests/ml/portable")
            sys.exit(subprocess.run([python, *tests], cwd=REPOSITORY, env={**os.environ, **written}).returncode)
        finally:
            subprocess.run(["git", "-C", REPOSITORY, "worktree", "remove", "--force", folder], check=True)


if __name__ == "__main__":
    main()
