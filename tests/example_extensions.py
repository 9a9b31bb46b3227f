"""A distribution of somebody else, made in a folder: a launcher and a stage, or broken ones."""

from __future__ import annotations

from pathlib import Path

_MODULE = '''
from airflow_hops.runner.launchers.local import LocalLauncher


class NicedLauncher(LocalLauncher):
    """Runs steps with a lower priority."""

    def __init__(self, *, niceness=5, **kwargs):
        super().__init__(**kwargs)
        self.niceness = niceness

    def start(self, spec_path, code_paths, *, variables={}, detached=None):
        variables = {**variables, "EXAMPLE_NICENESS": str(self.niceness)}
        return super().start(spec_path, code_paths, variables=variables, detached=detached)


def no_launcher():
    pass
'''
_STAGE = """
import json

from airflow_hops.hops import BadInput


def run(context, *, factor=2):
    if factor < 0:
        raise BadInput(f"factor is {factor}, expected 0 or more")
    with context.output() as writer:
        (writer.path / "doubled.json").write_text(json.dumps(21 * factor))
        return writer.commit(metrics={"doubled": 21.0 * factor})
"""


def write_distribution(folder: Path, name: str, entry_points: str) -> None:
    """Writes a distribution with entry points, and the modules ``example_launcher`` and ``example_stage``."""
    info = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(entry_points)
    (folder / "example_launcher.py").write_text(_MODULE)
    (folder / "example_stage.py").write_text(_STAGE)
