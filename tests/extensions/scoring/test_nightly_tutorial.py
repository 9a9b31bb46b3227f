"""The tutorial "Score a table every night", by its own text, where there is no network: nothing can listen."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from snippets import BLOCK, COMMAND, REPOSITORY
from uv import find_uv_bin

TEXT = (REPOSITORY / "docs" / "start" / "nightly.md").read_text()
INSTALLS = ("pip install ", "airflow hops runtime create")


class Reader:
    """Somebody who does what the tutorial says, in an empty folder."""

    def __init__(self, folder: Path, provider: Path, runtime: Path) -> None:
        self.folder = folder
        retained = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "PYTHON"))}
        self.environment = {
            **retained,
            "PATH": f"{Path(sys.executable).parent}:{retained['PATH']}",
            "PYTHONPATH": f"{REPOSITORY}:{provider}",
            "AIRFLOW__HOPS__RUNTIME": str(runtime),
        }

    def do(self, preceding: str, language: str, text: str) -> str:
        """Follows one block; returns what its commands print."""
        if language == "python":
            (name,) = re.findall(r"Save this(?: program)? as `(\S+)`", preceding)[-1:]
            (self.folder / name).write_text(text)
            return ""
        printed = ""
        for command in COMMAND.findall(text):
            if command.startswith("export "):
                for name, _, value in (word.partition("=") for word in shlex.split(command)[1:]):
                    self.environment[name] = value.replace("$PWD", str(self.folder))
            elif not command.startswith(INSTALLS):
                printed += self.run(command)
        return printed

    def run(self, command: str) -> str:
        alone = [unshare, "--net", "--map-root-user"] if (unshare := shutil.which("unshare")) else []
        done = subprocess.run(
            [*alone, "bash", "-c", command], cwd=self.folder, env=self.environment, stdin=subprocess.DEVNULL,
            capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}: {done.stdout[-5000:]}{done.stderr[-5000:]}"
        return done.stdout


@pytest.fixture
def reader(tmp_path: Path, runtime: Path) -> Reader:
    provider, folder = tmp_path / "provider", tmp_path / "empty"
    folder.mkdir()
    names = re.findall(r"^\$ pip install (.*)$", TEXT, re.MULTILINE)[0].split()[1:]
    command = [find_uv_bin(), "pip", "install", "--quiet", "--no-deps", "--target", str(provider), *names]
    subprocess.run(command, check=True)
    return Reader(folder, provider, runtime)


@pytest.mark.runtime
@pytest.mark.scheduled(part="campaigns")
def test_tutorial_ends_with_a_promotion_after_drift(reader: Reader) -> None:
    shown, position = [], 0
    for match in BLOCK.finditer(TEXT):
        printed = reader.do(TEXT[position : match.start()], match[3], match[4])
        shown += [printed] if "show.py" in match[4] else []
        position = match.end()
    rows = sqlite3.connect(reader.folder / "warehouse.db").execute(
        "SELECT substr(hops_batch, 1, 10), version, count(*) FROM parcels_scores GROUP BY 1, 2 ORDER BY 1, 2"
    )
    counts = {(day, version): count for day, version, count in rows}
    canary = counts.pop(("2026-04-28", 2))
    assert counts == {
        **{(f"2026-02-{day}", 1): 100 for day in (25, 26, 27)},
        **{(f"2026-04-{day}", 1): 100 for day in (25, 26, 27)},
        ("2026-04-28", 1): 100 - canary,
        ("2026-04-29", 2): 100,
    }
    assert 5 < canary < 40 and len(shown) == 3
