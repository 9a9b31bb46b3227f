"""Models of libraries that the runtime environment lacks, in named environments; test_converter_fixes.py stands in."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_diabetes
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from airflow_hops.core.artifacts.target import Target
from airflow_hops.core.errors import BadInput
from airflow_hops.ml.models.frameworks import framework_of
from airflow_hops.runner.environments.named import make_named, named_folder
from airflow_hops.runner.environments.runtime import pins_of
from airflow_hops.serving.errors import ServingError
from tests.ml.extensions.frameworks.exported import (
    GRAPES,
    LATE,
    NAMES,
    OUTPUTS,
    PRICE,
    WINE,
    WINES,
    X,
    ask,
    assert_answers,
    export,
)

pytestmark = pytest.mark.scheduled(part="frameworks")
UV = Path(__file__).resolve().parents[4] / ".uv" / "bin" / "uv"


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
    exported = export(model, folder, target, sample, framework, **options)
    assert (exported.format, exported.framework) == ("onnx", framework)
    assert exported.largest_difference < 1e-4
    return ask(folder / "onnx", pd.DataFrame(np.asarray(sample, np.float32)[:5], columns=list(exported.inputs)))


def test_boosted_trees_are_exported(boosters: None, tmp_path: Path) -> None:
    """The converter of XGBoost knows numbered features alone; the model keeps its own names."""
    import lightgbm
    import xgboost

    data, growth = load_diabetes(return_X_y=True, as_frame=True)
    data.iloc[::3, 2] = np.nan
    regressor = lightgbm.LGBMRegressor(n_estimators=20, verbose=-1).fit(data, growth)
    params = {"objective": "multiclass", "num_class": 3, "verbose": -1}
    classes = lightgbm.train(params, lightgbm.Dataset(X, GRAPES), 10)
    two = make_pipeline(StandardScaler(), lightgbm.LGBMClassifier(n_estimators=10, verbose=-1)).fit(X, GRAPES > 0)
    classifier = xgboost.XGBClassifier(n_estimators=10).fit(WINES, GRAPES)
    matrix = xgboost.DMatrix(X, GRAPES > 0)
    booster = xgboost.train({"objective": "binary:logistic"}, matrix, 10)
    pipeline = make_pipeline(StandardScaler(), xgboost.XGBRegressor(n_estimators=10)).fit(WINES, GRAPES)
    for number, (model, framework, target, sample, expected) in enumerate(
        (
            (regressor, "lightgbm", PRICE, data, regressor.predict(data.iloc[:5])),
            (classes, "lightgbm", WINE, X, classes.predict(X[:5])),
            (two, "sklearn", LATE, X, two.predict_proba(X[:5])[:, 1]),
            (classifier, "xgboost", WINE, WINES, classifier.predict_proba(WINES[:5])),
            (booster, "xgboost", LATE, X, booster.predict(matrix)[:5]),
            (pipeline, "sklearn", PRICE, WINES, pipeline.predict(WINES[:5])),
        )
    ):
        order = NAMES if sample is X else None
        result = served(model, tmp_path / str(number), framework, target, sample, order=order)
        assert result[OUTPUTS[target]] == pytest.approx(expected, rel=1e-4, abs=1e-5)
    assert classifier.get_booster().feature_names == NAMES
    numbers = xgboost.train({"objective": "multi:softmax", "num_class": 3}, xgboost.DMatrix(X, GRAPES), 2)
    dart = xgboost.XGBRegressor(booster="dart", n_estimators=2).fit(X, GRAPES)
    for model, target, message in (
        (numbers, WINE, r"Booster gives \[178\] for 178 rows; expected \[178, 3\], since the problem"),
        (dart, PRICE, "XGBRegressor has booster='dart', which does not convert to ONNX"),
    ):
        with pytest.raises(BadInput, match=message):
            served(model, tmp_path / "refused", "xgboost", target, X, order=NAMES)


def _random_booster(random: Random, rows: Any, target: Target, labels: Any) -> Any:
    """Trains a model of either library with random options; a third of the rows decides when it stops."""
    import lightgbm
    import xgboost

    held = np.arange(len(rows)) % 3 == 0
    classes = {"price": 0, "late": random.choice([0, 2]), "wine": 3}[target.label]
    is_early, parallel = random.random() < 0.6, random.choice([1, 1, 3])
    if random.random() < 0.5:
        kinds = {"price": ["reg:squarederror", "count:poisson", "reg:tweedie"], "late": ["binary:logistic"]}
        objective = "multi:softprob" if classes else random.choice(kinds[target.label])
        options = {"objective": objective, "learning_rate": 0.5, "num_parallel_tree": parallel, "subsample": 0.8}
        options |= {"num_class": classes} if classes else {}
        if random.random() < 0.5:
            train, test = (xgboost.DMatrix(rows[each], labels[each]) for each in (~held, held))
            early = {"evals": [(test, "test")], "early_stopping_rounds": 3} if is_early else {}
            return xgboost.train(options, train, 20, verbose_eval=False, **early)
        kind = xgboost.XGBRegressor if target is PRICE else xgboost.XGBClassifier
        early = {"early_stopping_rounds": 3} if is_early else {}
        frames = [pd.DataFrame(rows[each], columns=NAMES) for each in (~held, held)]
        model = kind(n_estimators=20, **options, **early)
        if random.random() < 0.3:
            return make_pipeline(StandardScaler(), model.set_params(early_stopping_rounds=None)).fit(rows, labels)
        return model.fit(frames[0], labels[~held], eval_set=[(frames[1], labels[held])], verbose=False)
    objective = "multiclass" if classes else {"price": "regression", "late": "binary"}[target.label]
    options = {"objective": objective, "learning_rate": 0.5, "min_data_in_leaf": 3, "verbose": -1}
    options |= {"num_class": classes} if classes else {}
    train, test = (lightgbm.Dataset(rows[each], labels[each]) for each in (~held, held))
    early = {"valid_sets": [test], "callbacks": [lightgbm.early_stopping(3, verbose=False)]} if is_early else {}
    return lightgbm.train(options, train, 20, keep_training_booster=random.random() < 0.5, **early)


def test_random_boosted_trees_are_exported(boosters: None, tmp_path: Path) -> None:
    random = Random(0)
    for number in range(60):
        target, noise = random.choice([LATE, PRICE, WINE]), np.random.default_rng(number)
        labels = {"late": (GRAPES > 0).astype(int), "price": GRAPES * 10.0, "wine": GRAPES}[target.label]
        labels = np.where(noise.random(len(X)) < 0.2, noise.permutation(labels), labels)
        rows = random.choice([X, np.round(X, 1), np.where(noise.random(X.shape) < 0.1, np.nan, X)]).astype(np.float32)
        model = _random_booster(random, rows, target, labels)
        framework = framework_of(model)
        sample = (
            rows
            if hasattr(model, "num_feature") or hasattr(model, "num_features")
            else pd.DataFrame(rows, columns=NAMES)
        )
        order = NAMES if sample is rows else None
        exported = export(model, tmp_path / str(number), target, sample, framework, order=order)
        assert exported.largest_difference < 1e-4


@pytest.mark.parametrize("options", [{}, {"zero_as_missing": True}, {"use_missing": False}], ids=str)
def test_lightgbm_keeps_missing_values_and_zeros_apart(boosters: None, options: dict[str, Any], tmp_path: Path) -> None:
    """Also of rows that are not like those that it was trained on."""
    import lightgbm

    frame = WINES.assign(kind=np.arange(len(X), dtype=np.float32) % 5)
    own = {"n_estimators": 10, "verbose": -1, **options}
    model = lightgbm.LGBMClassifier(min_child_samples=5, **own).fit(frame, GRAPES, categorical_feature=["kind"])
    in_pipeline = make_pipeline(StandardScaler(), lightgbm.LGBMClassifier(**own)).fit(frame, GRAPES)
    for number, (each, framework) in enumerate([(model, "lightgbm"), (in_pipeline, "sklearn")]):
        served(each, tmp_path / str(number), framework, WINE, frame)
        infinite = [] if each is in_pipeline else [np.inf]  # which the scaler refuses
        assert_values(each, tmp_path / str(number) / "onnx", frame, [np.nan, 0, -1, 1e-36, 2.5, *infinite])


@pytest.mark.parametrize("missing", [np.nan, 0.0, -1.0])
def test_xgboost_missing_value_is_respected(boosters: None, missing: float, tmp_path: Path) -> None:
    import xgboost

    frame = pd.DataFrame(X * (np.median(X, axis=0) < X), columns=NAMES)
    model = xgboost.XGBClassifier(n_estimators=10, missing=missing).fit(frame, GRAPES)
    served(model, tmp_path, "xgboost", WINE, frame)
    assert model.missing == missing or np.isnan(missing)
    assert_values(model, tmp_path / "onnx", frame, [np.nan, 0, -1, 100])


def assert_values(model: Any, folder: Path, frame: Any, values: list[float]) -> None:
    """Asserts that a served model answers as its own on rows with these values in each column."""
    rows = [frame[::9].assign(**{name: np.float32(value)}) for name in frame for value in values]
    assert_answers(model, folder, WINE, pd.concat(rows))


def cpu_build_of_torch() -> str | None:
    """The requirement of a build without CUDA, where pip is configured with a folder that holds one."""
    asked = subprocess.run([sys.executable, "-m", "pip", "config", "get", "global.find-links"], capture_output=True)
    for folder in (os.environ.get("PIP_FIND_LINKS") or asked.stdout.decode()).split():
        for wheel in Path(folder).glob("torch-*+cpu-cp311-*.whl") if Path(folder).is_dir() else ():
            return f"torch=={wheel.name.split('-')[1]}"
    return None


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
    for name, refused, message in (
        ("dropout", lambda: torch.nn.Sequential(Randomly(), network.float()), "be random: turn Dropout and noise off"),
        ("half", network.bfloat16, r"has parameters of torch.bfloat16; return model.float\(\)"),
        ("narrow", lambda: torch.nn.Linear(2, 3), "Linear does not predict for the rows of the sample: mat1 and mat2"),
        ("logits", logits.float, "which are not probabilities; end a network with Sigmoid or Softmax"),
    ):
        with pytest.raises(BadInput, match=message):
            served(refused(), tmp_path / name, "torch", WINE, X, order=NAMES)


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

    served(Network(), folder, "torch", LATE, X, order=NAMES)
    for outside in (-1, 30, np.nan):
        with pytest.raises(ServingError, match=r"out of data bounds|is NaN in row 0"):
            ask(folder / "onnx", WINES[:2].assign(m0=np.float32(outside)))


@pytest.mark.parametrize("target", [LATE, WINE, PRICE], ids=lambda target: target.problem)
def test_spark_pipeline_is_exported(
    use_packages: Callable[..., None], spark: Any, tmp_path: Path, target: Target
) -> None:
    """Strings and integers; unknown categories are kept or refused."""
    from pyspark.ml import Pipeline
    from pyspark.ml.classification import LogisticRegression
    from pyspark.ml.feature import StandardScaler as Scaler
    from pyspark.ml.feature import StringIndexer, VectorAssembler
    from pyspark.ml.regression import LinearRegression

    use_packages("converter", "onnxmltools")
    wine = WINES[NAMES[:3]].assign(soil=np.array(["clay", "lime"], object)[np.arange(len(X)) % 2])
    wine = wine.assign(year=np.arange(len(X)) % 7 + 1990)
    rows = spark.createDataFrame(wine.assign(label=(GRAPES == 1 if target is LATE else GRAPES).astype(float)))
    stages = [
        StringIndexer(inputCol="soil", outputCol="number", handleInvalid="keep" if target is LATE else "error"),
        VectorAssembler(inputCols=[*NAMES[:3], "number", "year"], outputCol="assembled"),
        Scaler(inputCol="assembled", outputCol="features", withMean=True),
        LinearRegression(maxIter=10) if target is PRICE else LogisticRegression(maxIter=10),
    ]
    model = Pipeline(stages=stages).fit(rows)
    assert framework_of(model) == "pyspark"
    exported = export(model, tmp_path, target, wine, "pyspark")
    assert (exported.format, exported.framework) == ("onnx", "pyspark")
    assert exported.largest_difference < 1e-4
    assert exported.inputs == {**dict.fromkeys(NAMES[:3], "float32"), "soil": "string", "year": "int64"}
    unknown = wine[:2].assign(soil=["sand", "clay"])
    if target is not LATE:
        with pytest.raises(ServingError, match="out of data bounds"):
            ask(tmp_path / "onnx", unknown)
        return
    expected = [row[0][1] for row in model.transform(spark.createDataFrame(unknown)).select("probability").collect()]
    assert ask(tmp_path / "onnx", unknown)["probability"] == pytest.approx(expected, abs=1e-5)
