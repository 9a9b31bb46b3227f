"""Extension points: the contracts, run against our own extensions and against those of another distribution."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from example_extensions import write_distribution

from airflow_hops.core.artifacts.target import Target
from airflow_hops.core.errors import BadInput
from airflow_hops.core.extensions import OWN, STAGES, extensions
from airflow_hops.core.processes.programs import with_package
from airflow_hops.ml.models.export import export_model
from airflow_hops.ml.models.frameworks import frameworks
from airflow_hops.ml.step.context import resolve
from airflow_hops.serving.models.formats import formats
from airflow_hops.testing.frameworks import FrameworkContract, TrainedCase
from airflow_hops.testing.model_formats import ModelFormatContract
from airflow_hops.testing.stages import StageContract

NUMBERS = np.random.default_rng(0).normal(size=(40, 2)).astype(np.float32)

THIRD_PARTY = """
import json

import numpy
from airflow_hops.ml.models.frameworks import Framework, Written
from airflow_hops.serving.errors import invalid_argument
from airflow_hops.serving.models.described import DescribedServable, request_definitions
from airflow_hops.serving.models.formats import ModelFormat
from airflow_hops.serving.models.model_signature import read_signature


class Scaled:
    def __init__(self, factor):
        self.factor = factor


class ScaledFramework(Framework):
    package = "scaled"
    distributions = ("hops-scaled",)

    def predict(self, model, sample, target):
        return sample.matrix[:, 0] * model.factor

    def formats(self, model):
        return ["scaled"]

    def write(self, model, folder, format, sample, target):
        (folder / "scaled.json").write_text(json.dumps({"factor": model.factor}))
        return Written(sample.inputs)


class ScaledServable(DescribedServable):
    def __init__(self, model, version, folder, options):
        try:
            self._factor = float(json.loads((folder / "scaled.json").read_text())["factor"])
            signature = read_signature(folder)
        except ValueError as error:
            raise invalid_argument(f"{folder}: {error}") from error
        definitions = request_definitions(signature)
        signature.outputs.fill(definitions)
        super().__init__(model, version, folder, options, signature, definitions)

    def _run(self, signature, feeds, aliases, deadline_s):
        matrix = self._signature.model.arrange(self._arranged(signature, feeds, deadline_s))
        outputs = self._signature.outputs
        scores = outputs.scores(matrix[:, 0] * numpy.float32(self._factor), len(matrix))
        return [outputs.array(signature.outputs[alias], scores) for alias in aliases]


SCALED = ModelFormat("scaled", ("scaled.json",), ScaledServable, distributions=("hops-scaled",))
"""


@pytest.fixture
def third_party(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the import path in which ``hops-scaled`` is installed."""
    folder = tmp_path_factory.mktemp("site")
    points = (
        "[airflow_hops.frameworks]\nscaled = scaled:ScaledFramework\n"
        "[airflow_hops.model_formats]\nscaled = scaled:SCALED\n"
    )
    write_distribution(folder / "hops", "hops-scaled", points)
    (folder / "hops" / "scaled.py").write_text(THIRD_PARTY)
    monkeypatch.syspath_prepend(folder / "hops")
    return folder


@pytest.mark.usefixtures("third_party")
class TestThirdPartyFramework(FrameworkContract):
    framework = "scaled"

    def train(self) -> TrainedCase:
        from scaled import Scaled

        return TrainedCase(Scaled(2.0), NUMBERS, Target("sum", "regression"), ("a", "b"))


@pytest.mark.usefixtures("third_party")
class TestThirdPartyFormat(ModelFormatContract):
    format = "scaled"
    rows = {"a": NUMBERS[:3, 0], "b": NUMBERS[:3, 1]}

    def write(self, folder: Path) -> None:
        from scaled import Scaled

        target = Target("sum", "regression")
        export_model(Scaled(3.0), folder, framework="scaled", target=target, sample=NUMBERS, order=("a", "b"))
        shutil.copytree(folder / "scaled", folder, dirs_exist_ok=True)


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Stages of another distribution, of which one is broken."""
    points = "[airflow_hops.stages]\ndoubled = example_stage:run\nbroken = example_stage:walk\n"
    write_distribution(tmp_path / "site", "hops-example", points)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    yield
    sys.modules.pop("example_stage", None)


@pytest.mark.usefixtures("example")
class TestStageOfAnotherDistribution(StageContract):
    name = "doubled"
    output_kind = "doubled"

    def test_stage_takes_params(self, run: Any) -> None:
        assert run(factor=3).value["metrics"] == {"doubled": 63.0}
        assert run(factor=-1).error == "factor is -1, expected 0 or more"


def test_contract_test_of_the_page_passes(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "howto" / "extensions.md").read_text()
    blocks = {text.splitlines()[0]: text for text in re.findall(r"```(?:python|toml)\n(.*?)```", page, re.DOTALL)}
    write_distribution(tmp_path, "hops-calibrate", "[airflow_hops.stages]\ncalibrate = hops_calibrate.stage:run\n")
    (tmp_path / "hops_calibrate").mkdir()
    (tmp_path / "hops_calibrate" / "stage.py").write_text(blocks["# hops_calibrate/stage.py"])
    (tmp_path / "test_calibrate.py").write_text(next(text for text in blocks.values() if "TestCalibrate" in text))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    env = with_package({**os.environ, "PYTHONPATH": str(tmp_path)})
    done = subprocess.run(command, capture_output=True, text=True, env=env, cwd=tmp_path)
    assert "5 passed" in done.stdout, done.stdout


@pytest.mark.slow
def test_imports_of_all_stages_start_no_threads() -> None:
    """The warm process imports them and forks."""
    modules = {stage.value.partition(":")[0] for stage in extensions(STAGES).values() if stage.distribution == OWN}
    program = f"""
import contextlib, importlib, threading
for module in {sorted(modules)}:
    with contextlib.suppress(ImportError):
        importlib.import_module(module)
print(threading.active_count())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=with_package(os.environ))
    assert done.stdout.split()[-1:] == ["1"], done.stderr


@pytest.mark.usefixtures("example")
def test_broken_stage_names_its_distribution() -> None:
    with pytest.raises(BadInput, match="'broken' = 'example_stage:walk' of the distribution 'hops-example' cannot be"):
        resolve("example_stage:walk")


@pytest.mark.parametrize(
    ("group", "name", "code", "words"),
    [
        ("frameworks", "broken", "import no_such_library", "No module named 'no_such_library'"),
        ("frameworks", "broken", "Broken = 1", "expected a Framework"),
        ("model_formats", "saved_model", "Broken = 1", "has the name of airflow_hops.model_formats 'saved_model'"),
    ],
)
def test_broken_extension_names_its_distribution(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: str, name: str, code: str, words: str
) -> None:
    write_distribution(tmp_path / "hops", "hops-broken", f"[airflow_hops.{group}]\n{name} = broken:Broken\n")
    (tmp_path / "hops" / "broken.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path / "hops")
    monkeypatch.delitem(sys.modules, "broken", raising=False)
    with pytest.raises(BadInput, match="distribution 'hops-broken'") as error:
        {"frameworks": frameworks, "model_formats": formats}[group]()
    assert words in str(error.value)
