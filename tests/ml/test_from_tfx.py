"""The pipelines that the page for users of TFX migrates, from raw rows to predictions of raw features."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from airflow_hops.ml.metrics.scoring import ScoredModel
from airflow_hops.ml.models.loaded_models import model_folder
from airflow_hops.ml.prepare import stage as prepare
from airflow_hops.ml.transform import stage as transform
from tests.ml.training.trainings import Trainings
from tests.ml.world import World

PAGE = Path(__file__).parents[2] / "docs" / "start" / "from_tfx.md"
PENGUIN_PREPARE = "def prepare(connection, tables):\n    return tables['penguins']\n"


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The page's modules, on the path."""
    modules = re.findall(r"```python\n# (\w+/\w+\.py)\n(.*?)```", PAGE.read_text(), re.DOTALL)
    for name, source in [*modules, ("penguin/prepare.py", PENGUIN_PREPARE)]:
        (tmp_path / "code" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "code" / name).write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path / "code"))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "code"))
    for package in ("taxi", "penguin"):
        for module in [name for name in sys.modules if name.partition(".")[0] == package]:
            monkeypatch.delitem(sys.modules, module)
    return tmp_path / "code"


@pytest.fixture
def migrated(code: Path, spark: Any, world: World, own_process: Any) -> Callable[..., ScoredModel]:
    """Runs a pipeline of the page on a table: ``migrated("taxi", "trips", table, label="big_tip")``."""

    def run(package: str, table: str, rows: pd.DataFrame, **params: Any) -> ScoredModel:
        params |= {"prepare": f"{package}.prepare:prepare", "engine": "duckdb"}
        artifacts = world.described(world.run(prepare, tables=world.snapshot({table: rows}), **params))
        transformed = world.run(transform, preprocess=f"{package}.features:preprocess", **artifacts)
        trainings = Trainings(world.store, world.folder, own_process)
        model = trainings(f"{package}.model:train", transformed, strategy="single", np=1)
        return ScoredModel(model_folder(world.store, model))

    return run


def test_taxi_example_predicts_tips_of_raw_trips(migrated: Any) -> None:
    random, rows = np.random.default_rng(1), 3000
    payment = random.choice(["Credit Card", "Cash", "No Charge"], rows)
    fare = random.gamma(3, 5, rows)
    tips = np.where(payment == "Credit Card", fare * random.uniform(0.1, 0.5, rows), 0.0)
    trips = pd.DataFrame(
        {
            "trip_miles": fare / 3 + random.normal(0, 0.2, rows),
            "fare": np.where(random.random(rows) < 0.02, np.nan, fare),
            "trip_seconds": (fare * 60).astype(int),
            "pickup_latitude": random.normal(41.9, 0.1, rows),
            "pickup_longitude": random.normal(-87.6, 0.1, rows),
            "trip_start_hour": random.integers(0, 24, rows),
            "payment_type": payment,
            "company": np.where(random.random(rows) < 0.5, None, "Blue"),
            "tips": tips,
        }
    )
    model = migrated("taxi", "trips", trips, label="big_tip")
    assert (model.problem, "tips" in model.inputs, model.inputs["payment_type"]) == ("binary", False, "string")
    request = {
        name: np.array([value.encode()] * 2, object) if isinstance(value, str) else np.array([value] * 2)
        for name, value in {**trips.iloc[0].to_dict(), "company": "", "fare": 12.0}.items()
    }
    card, cash = model.predict({**request, "payment_type": np.array([b"Credit Card", b"Cash"], object)})
    assert card > 0.5 > cash


@pytest.mark.scheduled(part="tfx")
def test_penguin_example_names_species_of_raw_measurements(migrated: Any) -> None:
    random, rows = np.random.default_rng(2), 600
    kind = random.integers(0, 3, rows)
    measured = {
        "bill_length_mm": np.array([38.8, 48.8, 47.5])[kind],
        "bill_depth_mm": np.array([18.3, 18.4, 15.0])[kind],
        "flipper_length_mm": np.array([190.0, 196.0, 217.0])[kind],
        "body_mass_g": np.array([3700.0, 3733.0, 5076.0])[kind],
    }
    table = {name: means * random.normal(1, 0.02, rows) for name, means in measured.items()}
    species = np.array(["Adelie", "Chinstrap", "Gentoo"])[kind]
    model = migrated("penguin", "penguins", pd.DataFrame({**table, "species": species}), label="species")
    request = {name: np.array([means[kind == 0][0], means[kind == 2][0]]) for name, means in measured.items()}
    shares = model.predict(request)
    assert shares.argmax(axis=1).tolist() == [0, 2]
