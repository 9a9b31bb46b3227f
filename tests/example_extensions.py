"""Distributions of somebody else, made in a folder: a launcher and a stage, or broken ones; pages."""

from __future__ import annotations

from pathlib import Path

_MODULE = '''
from airflow_hops.runner.launchers.local import LocalLauncher


class NicedLauncher(LocalLauncher):
    """Runs steps with a lower priority."""

    def __init__(self, *, niceness=5, **kwargs):
        super().__init__(**kwargs)
        self.niceness = niceness

    def start(self, spec_path, code_paths, *, variables={}):
        variables = {**variables, "EXAMPLE_NICENESS": str(self.niceness)}
        return super().start(spec_path, code_paths, variables=variables)


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


_PAGES = """
from pathlib import Path

from fastapi import APIRouter

from airflow_hops.extensions import READS_ARTIFACTS, ExtensionPage

router = APIRouter(prefix="/api/dags/{dag_id}/calibration", dependencies=[READS_ARTIFACTS])


@router.get("")
def get_calibration(dag_id: str) -> str:
    return f"calibrated by {dag_id}"


HERE = Path(__file__).parent
PAGE = ExtensionPage(router=router, bundle=HERE / "calibration.js", destination="pipeline", label="Calibration")
EMPTY = ExtensionPage(router=APIRouter(), bundle=HERE / "empty.js", destination="model", label="Nothing")
"""
_BUNDLE = """
(() => {
  const { createElement, useState } = globalThis.React;
  const { Box, Button } = globalThis.ChakraUI;
  const { api, Empty, QueryView } = globalThis.AirflowHops;
  globalThis.AirflowPlugin = function Calibration({ dagId }) {
    const [count, setCount] = useState(0);
    const params = { path: { dag_id: dagId } };
    const query = api.useQuery("get", "/api/dags/{dag_id}/calibration", { params });
    const button = createElement(Button, { onClick: () => setCount(count + 1) }, `Counted ${count}`);
    const shown = (text) => createElement(Empty, { title: text }, createElement(Box, null, button));
    return createElement(QueryView, { query }, shown);
  };
})();
"""
_PAGES_ENTRY = "[airflow_hops.pages]\ncalibration = example_pages:PAGE\nnothing = example_pages:EMPTY\n"


def example_pages(folder: Path) -> Path:
    """Writes a distribution with a page of a pipeline, and a tab of a model whose bundle has no component."""
    write_distribution(folder, "hops-example-pages", _PAGES_ENTRY)
    (folder / "example_pages.py").write_text(_PAGES)
    (folder / "calibration.js").write_text(_BUNDLE)
    (folder / "empty.js").write_text("// no component")
    return folder


def write_distribution(folder: Path, name: str, entry_points: str) -> None:
    """Writes a distribution with entry points, and the modules ``example_launcher`` and ``example_stage``."""
    info = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(entry_points)
    (folder / "example_launcher.py").write_text(_MODULE)
    (folder / "example_stage.py").write_text(_STAGE)
