"""Estimators in skops' format, written under one profile and read under the other.

    PYTHONPATH=.:dags:tests:tests/ml:tests/ml/portable .venv-runtime/bin/python \\
        tests/ml/extensions/frameworks/test_portable_estimators.py

writes the one of this environment's profile.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.compose import ColumnTransformer
from sklearn.linear_model import LinearRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

from airflow_hops.core.profiles import PROFILES, own_profile
from airflow_hops.extensions.frameworks import scikit_learn
from tests.ml.portable.write_portable import answer, assert_same_outputs

HERE = Path(__file__).parent / "portable"


@pytest.mark.parametrize("profile", [each.name for each in PROFILES])
def test_an_estimator_predicts_the_same(profile: str) -> None:
    assert_same_outputs(HERE / profile / "skops", json.loads((HERE / profile / "skops.json").read_text()))


if __name__ == "__main__":
    own = own_profile()
    assert own is not None
    folder = HERE / own.name
    shutil.rmtree(folder, ignore_errors=True)
    table = pd.DataFrame({"carrier": ["UA", "AA", "B6"] * 20, "distance": np.linspace(100.0, 2500.0, 60)})
    encoder = ColumnTransformer(
        [("carrier", OneHotEncoder(handle_unknown="ignore"), ["carrier"])], remainder="passthrough"
    )
    scikit_learn.save(make_pipeline(encoder, LinearRegression()).fit(table, table.distance), folder / "skops", table)
    (folder / "skops.json").write_text(json.dumps(answer(folder / "skops", table.head(12))))
