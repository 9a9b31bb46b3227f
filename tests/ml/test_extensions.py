"""Extension points: the contracts, run against our own extensions and against those of another distribution."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from example_extensions import write_distribution
from sklearn.linear_model import LinearRegression

from airflow_hops.core.contract.artifacts import BadInput
from airflow_hops.core.contract.target import Target
from airflow_hops.ml.models import scikit_learn
from airflow_hops.ml.models.export import export_model
from airflow_hops.ml.models.frameworks import frameworks
from airflow_hops.testing.frameworks import FrameworkContract, TrainedCase
from airflow_hops.testing.model_formats import ModelFormatContract

NUMBERS = np.random.default_rng(0).normal(size=(40, 2)).astype(np.float32)
SUMS = NUMBERS.sum(axis=1)

THIRD_PARTY = """
import json

import numpy
import onnx
from airflow_hops.core.serving_api import tensors
from airflow_hops.ml.models import scikit_learn
from airflow_hops.ml.models.export import export_model
from airflow_hops.ml.models.frameworks import Framework
from airflow_hops.extensions.frameworks.ml.onnx_converters import Graph
from airflow_hops.serving.errors import invalid_argument
from airflow_hops.serving.models.described import DescribedServable, request_definitions
from airflow_hops.serving.models.estimator_signature import EstimatorInputs
from airflow_hops.serving.models.formats import ModelFormat
from airflow_hops.serving.models.model_signature import ModelSignature
from airflow_hops.serving.models.signature_defs import fill_info


class Scaled:
    def __init__(self, factor):
        self.factor = factor


class ScaledFramework(Framework):
    package = "scaled"
    distributions = ("hops-scaled",)

    def predict(self, model, sample, target):
        return sample.matrix[:, 0] * model.factor

    def convert(self, model, sample, target):
        helper, number = onnx.helper, onnx.TensorProto.FLOAT
        nodes = [
            helper.make_node("Gather", ["inputs", "first"], ["column"], axis=1),
            helper.make_node("Mul", ["column", "factor"], ["output"]),
        ]
        constants = [
            helper.make_tensor("first", onnx.TensorProto.INT64, [1], [0]),
            helper.make_tensor("factor", number, [], [model.factor]),
        ]
        width = sample.matrix.shape[1]
        inputs = [helper.make_tensor_value_info("inputs", number, [None, width])]
        outputs = [helper.make_tensor_value_info("output", number, [None, 1])]
        graph = helper.make_graph(nodes, "scaled", inputs, outputs, constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
        columns = EstimatorInputs({"inputs": tensors.BY_NAME["float"]}, width)
        return Graph(model.SerializeToString(), columns, {"": "output"})


class ScaledServable(DescribedServable):
    def __init__(self, model, version, folder, options):
        try:
            self._factor = float(json.loads((folder / "scaled.json").read_text())["factor"])
        except ValueError as error:
            raise invalid_argument(f"{folder}: {error}") from error
        columns = EstimatorInputs({"x": tensors.BY_NAME["float"]})
        signature = ModelSignature(columns, columns)
        definitions = request_definitions(signature)
        fill_info(definitions.signature_def["serving_default"].outputs["y"], "y", tensors.BY_NAME["float"], [-1])
        super().__init__(model, version, folder, options, signature, definitions)

    def _run(self, signature, feeds, aliases, deadline_s):
        return [feeds[0] * numpy.float32(self._factor)]


SCALED = ModelFormat("scaled", ("scaled.json",), ScaledServable)
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


class TestScikitLearn(FrameworkContract):
    framework = "sklearn"

    def train(self) -> TrainedCase:
        return TrainedCase(LinearRegression().fit(NUMBERS, SUMS), NUMBERS, Target("sum", "regression"), ("a", "b"))


@pytest.mark.usefixtures("third_party")
class TestThirdPartyFramework(FrameworkContract):
    framework = "scaled"

    def train(self) -> TrainedCase:
        from scaled import Scaled

        return TrainedCase(Scaled(2.0), NUMBERS, Target("sum", "regression"), ("a", "b"))


class TestEstimators(ModelFormatContract):
    format = "sklearn"
    rows = {"inputs": NUMBERS[:3].astype(np.float64)}

    def write(self, folder: Path) -> None:
        scikit_learn.save(LinearRegression().fit(NUMBERS, SUMS), folder / "saved", NUMBERS.astype(np.float64))
        shutil.copytree(folder / "saved", folder, dirs_exist_ok=True)


class TestOnnx(ModelFormatContract):
    format = "onnx"
    rows = {"a": NUMBERS[:3, 0], "b": NUMBERS[:3, 1]}

    def write(self, folder: Path) -> None:
        model, target = LinearRegression().fit(NUMBERS, SUMS), Target("sum", "regression")
        export_model(model, folder, framework="sklearn", target=target, sample=NUMBERS, order=("a", "b"))
        shutil.copytree(folder / "onnx", folder, dirs_exist_ok=True)


@pytest.mark.usefixtures("third_party")
class TestThirdPartyFormat(ModelFormatContract):
    format = "scaled"
    rows = {"x": NUMBERS[:3, 0]}

    def write(self, folder: Path) -> None:
        (folder / "scaled.json").write_text('{"factor": 3}')


@pytest.mark.parametrize(
    ("entry", "code", "words"),
    [
        ("broken = broken:Broken", "import no_such_library", "No module named 'no_such_library'"),
        ("broken = broken:Broken", "Broken = 1", "expected a Framework"),
        ("sklearn = broken:Broken", "Broken = 1", "has the name of airflow_hops.frameworks 'sklearn'"),
    ],
)
def test_broken_extension_names_its_distribution(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entry: str, code: str, words: str
) -> None:
    write_distribution(tmp_path / "hops", "hops-broken", f"[airflow_hops.frameworks]\n{entry}\n")
    (tmp_path / "hops" / "broken.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path / "hops")
    monkeypatch.delitem(sys.modules, "broken", raising=False)
    with pytest.raises(BadInput, match="distribution 'hops-broken'") as error:
        frameworks()
    assert words in str(error.value)
