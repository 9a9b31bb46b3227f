"""Constants: figures of the training split that preprocessing functions ask for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf

from airflow_hops.core.contract.artifacts import BadInput
from airflow_hops.ml.features.constants import Constants
from airflow_hops.ml.features.preprocessing import z_score
from airflow_hops.ml.statistics import generate_statistics
from tests import flights_examples


def test_constants_come_from_the_training_split(constants: Constants, flights_raw: Path) -> None:
    winter = flights_examples.months(flights_raw, 1, 3)
    train = winter[winter.index % 4 == 0]
    distance = train["distance"]
    assert constants.row_count() == len(train)
    assert constants.mean("distance") == pytest.approx(distance.mean())
    assert constants.std_dev("distance") == pytest.approx(distance.std(ddof=0))
    assert (constants.minimum("distance"), constants.maximum("distance")) == (distance.min(), distance.max())
    assert constants.missing_fraction("temp") == pytest.approx(train["temp"].isna().mean())
    below = [float((distance <= boundary).mean()) for boundary in constants.quantiles("distance", 4)]
    assert below == pytest.approx([0.25, 0.5, 0.75], abs=0.06)
    assert float((distance <= constants.median("distance")).mean()) == pytest.approx(0.5, abs=0.06)
    counts = train["carrier"].value_counts()
    assert constants.vocabulary("carrier", top_k=2).values == tuple(counts.index[:2])
    assert constants.vocabulary("carrier", min_frequency=1000).values == tuple(counts.index[counts >= 1000])
    assert constants.vocabulary("origin").values == tuple(train["origin"].value_counts().index)
    assert constants.used["distance"]["mean"] == constants.mean("distance")


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda c: c.mean("arr_delay"), "there is no feature 'arr_delay'.*there are carrier, dest"),
        (lambda c: c.mean("carrier"), r"feature 'carrier' is not numeric.*vocabulary\(\)"),
        (lambda c: c.vocabulary("distance"), r"vocabulary\('distance'\).*FLOAT"),
        (lambda c: c.quantiles("distance", 1), r"^quantiles\('distance', 1\): expected at least 2 parts$"),
    ],
)
def test_unknown_feature_or_statistic_is_named_with_existing_ones(
    constants: Constants, ask: Callable[[Constants], Any], words: str
) -> None:
    with pytest.raises(BadInput, match=words):
        ask(constants)


def test_statistics_placeholders_cannot_be_used_as_values(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    texts = ["common"] * 5 + [f"{number}" * 2000 for number in range(3)] + ["rare", b"\xff\xfe", ""]
    table = pa.table({"text": pa.array([text.encode() if isinstance(text, str) else text for text in texts])})
    path = tmp_path / "FeatureStats.pb"
    path.write_bytes(generate_statistics(table).SerializeToString())
    vocabulary = Constants.read(path).vocabulary("text")
    assert vocabulary.values == ("common", "rare")
    assert vocabulary.size == 3
    assert "vocabulary('text'): 3 values are longer than 1,024 bytes and have no id" in caplog.text
    assert "vocabulary('text'): 1 values are not UTF-8 and have no id" in caplog.text
    assert Constants.read(path).vocabulary("text", top_k=2).values == ("common", "rare")
    assert Constants.read(path).vocabulary("text", min_frequency=2).values == ("common",)


def test_a_constant_has_no_deviation(tmp_path: Path) -> None:
    path = tmp_path / "FeatureStats.pb"
    path.write_bytes(generate_statistics(pa.table({"rate": [0.1] * 1000})).SerializeToString())
    constants = Constants.read(path)
    assert constants.std_dev("rate") == 0
    scores = z_score({"rate": tf.constant([0.1, np.nan, 0.2])}, "rate", constants)
    assert scores.numpy().tolist() == pytest.approx([0, 0, 0.1])
