"""Models of libraries that the runtime environment has not: in named environments, made in seconds."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_diabetes, load_wine
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from airflow_hops.core.contract.artifacts import BadInput
from airflow_hops.core.contract.target import Target
from airflow_hops.environments.named import make_named, named_folder
from airflow_hops.environments.runtime import pins_of
from airflow_hops.ml.models.export import export_model
from airflow_hops.ml.models.frameworks import framework_of
from airflow_hops.serving.errors import ServingError
from airflow_hops.serving.models.formats import open_model
from airflow_hops.serving.models.model_options import ModelOptions

UV = Path(__file__).resolve().parents[4] / ".uv" / "bin" / "uv"

GROWTH = Target("growth", "regression")
WINE = Target("wine", "multiclass", ("barolo", "grignolino", "barbera"))
RED = Target("red", "binary", ("white", "red"))

X, Y = load_wine(return_X_y=True)
X = X.astype(np.float32)
NAMES = [f"m{number}" for number in range(X.shape[1])]


@pytest.fixture(scope="module")
def use_packages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., None]]:
    """Lets this process import packages of a named environment."""
    base = tmp_path_factory.mktemp("runtimes") / "runtime"
    base.symlink_to(sys.prefix)  # so that what is beside it is not beside the real one
    with pytest.MonkeyPatch.context() as patch:

        def use(name: str, *packages: str) -> None:
            make_named(base, name, packages, pins_of(base), uv=str(UV))
            (site,) = named_folder(base, name).glob("lib/python3*/site-packages")
            patch.setattr(sys, "path", [*sys.path, str(site)])

        yield use


@pytest.fixture(scope="module")
def boosters(use_packages: Callable[..., None]) -> None:
    """LightGBM and XGBoost, and what converts them."""
    use_packages("boosters", "lightgbm", "xgboost-cpu", "onnxmltools")


def served(model: Any, folder: Path, framework: str, target: Target, sample: Any, **options: Any) -> dict[str, Any]:
    """Returns the exported model's answers to the first rows."""
    exported = export_model(model, folder, framework=framework, target=target, sample=sample, **options)
    assert (exported.format, exported.framework) == ("onnx", framework)
    assert exported.largest_difference < 1e-4
    rows = np.asarray(sample, np.float32)[:5]
    servable: Any = open_model("m", 1, folder / "onnx", ModelOptions())
    try:
        result: dict[str, Any] = servable.predict(
            {name: rows[:, number] for number, name in enumerate(exported.inputs)}
        )
        return result
    finally:
        servable.close()


def test_lightgbm_trees_are_exported(boosters: None, tmp_path: Path) -> None:
    import lightgbm

    data, growth = load_diabetes(return_X_y=True, as_frame=True)
    data.iloc[::3, 2] = np.nan
    regressor = lightgbm.LGBMRegressor(n_estimators=20, verbose=-1).fit(data, growth)
    result = served(regressor, tmp_path / "regressor", "lightgbm", GROWTH, data)
    assert result["prediction"] == pytest.approx(regressor.predict(data.iloc[:5]), rel=1e-4)
    params = {"objective": "multiclass", "num_class": 3, "verbose": -1}
    booster = lightgbm.train(params, lightgbm.Dataset(X, Y), 10)
    result = served(booster, tmp_path / "booster", "lightgbm", WINE, X, order=NAMES)
    assert result["probabilities"] == pytest.approx(booster.predict(X[:5]), abs=1e-5)
    two = make_pipeline(StandardScaler(), lightgbm.LGBMClassifier(n_estimators=10, verbose=-1)).fit(X, Y > 0)
    result = served(two, tmp_path / "pipeline", "sklearn", RED, X, order=NAMES)
    assert result["probability"] == pytest.approx(two.predict_proba(X[:5])[:, 1], abs=1e-5)


def test_xgboost_trees_are_exported(boosters: None, tmp_path: Path) -> None:
    """Its converter knows numbered features alone; the model keeps its own names."""
    import xgboost

    frame = pd.DataFrame(X, columns=NAMES)
    classifier = xgboost.XGBClassifier(n_estimators=10).fit(frame, Y)
    result = served(classifier, tmp_path / "classifier", "xgboost", WINE, frame)
    assert result["probabilities"] == pytest.approx(classifier.predict_proba(frame[:5]), abs=1e-5)
    assert classifier.get_booster().feature_names == NAMES
    matrix = xgboost.DMatrix(X, Y > 0)
    booster = xgboost.train({"objective": "binary:logistic"}, matrix, 10)
    result = served(booster, tmp_path / "booster", "xgboost", RED, X, order=NAMES)
    assert result["probability"] == pytest.approx(booster.predict(matrix)[:5], abs=1e-5)
    pipeline = make_pipeline(StandardScaler(), xgboost.XGBRegressor(n_estimators=10)).fit(frame, Y)
    result = served(pipeline, tmp_path / "pipeline", "sklearn", GROWTH, frame)
    assert result["prediction"] == pytest.approx(pipeline.predict(frame[:5]), rel=1e-4)
    numbers = xgboost.train({"objective": "multi:softmax", "num_class": 3}, xgboost.DMatrix(X, Y), 2)
    with pytest.raises(
        BadInput, match=r"Booster gives \[178\] for 178 rows; expected \[178, 3\], since the problem is"
    ):
        served(numbers, tmp_path / "numbers", "xgboost", WINE, X, order=NAMES)


@pytest.mark.parametrize(
    "options",
    [{}, {"zero_as_missing": True}, {"use_missing": False}],
    ids=["plain", "zero is missing", "none is missing"],
)
def test_lightgbm_keeps_missing_values_and_zeros_apart(boosters: None, options: dict[str, Any], tmp_path: Path) -> None:
    """Also of rows that are not like those that it was trained on."""
    import lightgbm

    frame = pd.DataFrame(X, columns=NAMES)
    frame["kind"] = np.arange(len(X), dtype=np.float32) % 5
    model = lightgbm.LGBMClassifier(n_estimators=10, verbose=-1, min_child_samples=5, **options)
    model.fit(frame, Y, categorical_feature=["kind"])
    in_pipeline = make_pipeline(StandardScaler(), lightgbm.LGBMClassifier(n_estimators=10, verbose=-1, **options))
    for number, (each, framework) in enumerate([(model, "lightgbm"), (in_pipeline.fit(frame, Y), "sklearn")]):
        served(each, tmp_path / str(number), framework, WINE, frame)
        check_values(each, tmp_path / str(number) / "onnx", frame, [np.nan, 0, -1, 1e-36, 2.5, np.inf])


@pytest.mark.parametrize("missing", [np.nan, 0.0, -1.0])
def test_xgboost_missing_value_is_respected(boosters: None, missing: float, tmp_path: Path) -> None:
    import xgboost

    frame = pd.DataFrame(X * (np.median(X, axis=0) < X), columns=NAMES)
    model = xgboost.XGBClassifier(n_estimators=10, missing=missing).fit(frame, Y)
    served(model, tmp_path, "xgboost", WINE, frame)
    assert model.missing == missing or np.isnan(missing)
    check_values(model, tmp_path / "onnx", frame, [np.nan, 0, -1, 100])


def check_values(model: Any, folder: Path, frame: Any, values: list[float]) -> None:
    """Compares a served model with its own on rows with these values in each column."""
    servable: Any = open_model("m", 1, folder, ModelOptions())
    for name in frame:
        for value in values:
            rows = frame[::9].assign(**{name: np.float32(value)})
            if "StandardScaler" in repr(model) and np.isinf(value):
                continue  # which it refuses
            result = servable.predict({column: rows[column].to_numpy("float32") for column in rows})
            np.testing.assert_allclose(result["probabilities"], model.predict_proba(rows), atol=1e-5)
    servable.close()


def cpu_build_of_torch() -> str | None:
    """The requirement of a build without CUDA, where pip is configured with a folder that holds one."""
    asked = subprocess.run([sys.executable, "-m", "pip", "config", "get", "global.find-links"], capture_output=True)
    for folder in (os.environ.get("PIP_FIND_LINKS") or asked.stdout.decode()).split():
        for wheel in Path(folder).glob("torch-*+cpu-cp311-*.whl") if Path(folder).is_dir() else ():
            return f"torch=={wheel.name.split('-')[1]}"
    return None


def test_unconvertible_xgboost_model_is_refused(boosters: None, tmp_path: Path) -> None:
    import xgboost

    model = xgboost.XGBRegressor(booster="dart", n_estimators=2).fit(X, Y)
    message = (
        r"step 'xgbregressor' has booster='dart', which does not convert to ONNX. use booster='gbtree', or dropout"
    )
    with pytest.raises(BadInput, match=message.replace("step 'xgbregressor'", "XGBRegressor")):
        served(model, tmp_path, "xgboost", GROWTH, X)
    with pytest.raises(BadInput, match=message.replace(". use", "..* use")):
        served(make_pipeline(StandardScaler(), model).fit(X, Y), tmp_path, "sklearn", GROWTH, X)


@pytest.mark.scheduled(part="frameworks")  # half a minute to install
def test_pytorch_network_is_exported(use_packages: Callable[..., None], tmp_path: Path) -> None:
    requirement = cpu_build_of_torch()
    if requirement is None:
        pytest.skip("pip's find-links have no build of PyTorch without CUDA; PyPI's takes gigabytes")
    use_packages("torch", requirement)
    import torch

    class Randomly(torch.nn.Module):  # type: ignore[misc]
        def forward(self, rows: Any) -> Any:
            return torch.nn.functional.dropout(rows, 0.5, training=True)

    torch.manual_seed(1)
    logits = torch.nn.Sequential(torch.nn.Linear(len(NAMES), 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    network = torch.nn.Sequential(logits, torch.nn.Softmax(1))
    result = served(network, tmp_path / "network", "torch", WINE, X, order=NAMES)
    assert result["probabilities"] == pytest.approx(network(torch.from_numpy(X[:5])).detach().numpy(), abs=1e-6)
    check_embedding(tmp_path / "embedding")
    compiled = torch.nn.Sequential(torch.compile(logits), torch.nn.Softmax(1))
    for name, model in {"double": network.double(), "compiled": torch.compile(compiled)}.items():
        again = served(model, tmp_path / name, "torch", WINE, X, order=NAMES)
        assert again["probabilities"] == pytest.approx(result["probabilities"], abs=1e-6)
    dropout = torch.nn.Sequential(Randomly(), network.float())
    with pytest.raises(BadInput, match="A served model must not be random: turn Dropout and noise off"):
        served(dropout, tmp_path / "dropout", "torch", WINE, X, order=NAMES)
    with pytest.raises(BadInput, match=r"has parameters of torch.bfloat16; return model.float\(\)"):
        served(network.bfloat16(), tmp_path / "half", "torch", WINE, X, order=NAMES)
    with pytest.raises(BadInput, match="Linear does not predict for the rows of the sample: mat1 and mat2 shapes"):
        served(torch.nn.Linear(2, 3), tmp_path / "narrow", "torch", WINE, X, order=NAMES)
    logits = logits.float()
    with pytest.raises(BadInput, match="which are not probabilities; end a network with Sigmoid or Softmax"):
        served(logits, tmp_path / "logits", "torch", WINE, X, order=NAMES)


def check_embedding(folder: Path) -> None:
    """A row before the first is refused, as PyTorch refuses it; ONNX counts from the end."""
    import torch

    class Network(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.table, self.last = torch.nn.Embedding(30, 4), torch.nn.Linear(4 + len(NAMES) - 1, 1)

        def forward(self, rows: Any) -> Any:
            joined = torch.cat([self.table(rows[:, 0].long()), rows[:, 1:]], 1)
            return torch.sigmoid(self.last(joined))

    served(Network(), folder, "torch", RED, X, order=NAMES)
    servable: Any = open_model("m", 1, folder / "onnx", ModelOptions())
    rows = {name: X[:2, number] for number, name in enumerate(NAMES)}
    for outside in (-1, 30, np.nan):
        with pytest.raises(ServingError, match=r"out of data bounds|is NaN in row 0"):
            servable.predict({**rows, NAMES[0]: np.full(2, outside, np.float32)})
    servable.close()


@pytest.fixture(scope="module")
def raw_wine() -> Any:
    """Wines with a string and an integer among their features."""
    frame = pd.DataFrame(X[:, :3], columns=NAMES[:3]).assign(soil=[("clay", "lime")[n % 2] for n in range(len(X))])
    return frame.assign(year=np.arange(len(X)) % 7 + 1990)


def test_spark_unknown_categories_are_kept_or_refused(
    use_packages: Callable[..., None], spark: Any, raw_wine: Any, tmp_path: Path
) -> None:
    from pyspark.ml import Pipeline
    from pyspark.ml.classification import LogisticRegression
    from pyspark.ml.feature import StringIndexer, VectorAssembler

    use_packages("converter", "onnxmltools")
    sample = raw_wine[["soil", "m0"]]
    rows = spark.createDataFrame(sample.assign(label=(Y == 1).astype(float)))
    unknown = {"soil": np.array([b"sand", b"clay"], object), "m0": np.full(2, 13, np.float32)}
    for handled in ("keep", "error"):
        soil = StringIndexer(inputCol="soil", outputCol="number", handleInvalid=handled)
        features = VectorAssembler(inputCols=["number", "m0"], outputCol="features")
        model = Pipeline(stages=[soil, features, LogisticRegression(maxIter=5)]).fit(rows)
        export_model(model, tmp_path / handled, framework="pyspark", target=RED, sample=sample)
        servable: Any = open_model("m", 1, tmp_path / handled / "onnx", ModelOptions())
        if handled == "error":
            with pytest.raises(ServingError, match="out of data bounds"):
                servable.predict(unknown)
        else:
            asked = spark.createDataFrame(pd.DataFrame({"soil": ["sand", "clay"], "m0": [13.0, 13.0]}))
            expected = [row[0][1] for row in model.transform(asked).select("probability").collect()]
            assert servable.predict(unknown)["probability"] == pytest.approx(expected, abs=1e-5)
        servable.close()


@pytest.mark.parametrize("target", [RED, WINE, GROWTH], ids=lambda target: target.problem)
def test_spark_pipeline_is_exported(
    use_packages: Callable[..., None], spark: Any, raw_wine: Any, tmp_path: Path, target: Target
) -> None:
    from pyspark.ml import Pipeline
    from pyspark.ml.classification import LogisticRegression
    from pyspark.ml.feature import StandardScaler as Scaler
    from pyspark.ml.feature import StringIndexer, VectorAssembler
    from pyspark.ml.regression import LinearRegression

    use_packages("converter", "onnxmltools")
    rows = spark.createDataFrame(raw_wine.assign(label=(Y == 1 if target is RED else Y).astype(float)))
    stages = [
        StringIndexer(inputCol="soil", outputCol="soil_number"),
        VectorAssembler(inputCols=[*NAMES[:3], "soil_number", "year"], outputCol="assembled"),
        Scaler(inputCol="assembled", outputCol="features", withMean=True),
        LinearRegression(maxIter=10) if target is GROWTH else LogisticRegression(maxIter=10),
    ]
    model = Pipeline(stages=stages).fit(rows)
    assert framework_of(model) == "pyspark"
    exported = export_model(model, tmp_path / "model", framework="pyspark", target=target, sample=raw_wine)
    assert (exported.format, exported.framework) == ("onnx", "pyspark")
    assert exported.largest_difference < 1e-4
    assert exported.inputs == {**dict.fromkeys(NAMES[:3], "float32"), "soil": "string", "year": "int64"}
