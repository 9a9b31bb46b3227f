"""Functions of preprocessing over numbers of all sizes, compared with Python's exact arithmetic."""

from __future__ import annotations

import math
from fractions import Fraction
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from campaigns import campaign

from airflow_hops.core.errors import BadInput
from airflow_hops.ml.features.preprocessing import bucketize, cyclic, z_score

DTYPES = (tf.int64, tf.float32, tf.float64)


def _numbers(random: Random, dtype: tf.DType) -> Any:
    """Draws an array of a few numbers near to each other, at a random distance from 0."""
    start = random.choice([0, 1, -1]) * 10 ** random.uniform(0, 15)
    spread = 10 ** random.uniform(0, 5)
    return np.array([start + random.uniform(-spread, spread) for _ in range(20)]).astype(dtype.as_numpy_dtype)


@campaign("draws", 100, 2000)
def test_functions_agree_with_exact_arithmetic(draws: int) -> None:
    random = Random(0)
    for _ in range(draws):
        dtype = random.choice(DTYPES)
        numbers = _numbers(random, dtype)
        values, exact = tf.constant(numbers), [Fraction(each.item()) for each in numbers]

        limits = sorted(random.sample(numbers.tolist(), 3))
        limits = [float(each) for each in limits] if random.random() < 0.5 else limits
        expected = [sum(each >= Fraction(limit) for limit in limits) for each in exact]
        assert bucketize(values, limits).numpy().tolist() == expected, (dtype, numbers, limits)

        period = random.choice([7, 60, 86400, 0.25, 365.25])
        angles = [2 * math.pi * float(each % Fraction(period) / Fraction(period)) for each in exact]
        circle = np.array([[math.sin(angle), math.cos(angle)] for angle in angles])
        np.testing.assert_allclose(cyclic(values, period), circle, atol=1e-6)

        mean = sum(exact) / len(exact)
        deviation = math.sqrt(sum((each - mean) ** 2 for each in exact) / len(exact))
        constants: Any = SimpleNamespace(mean=lambda _, m=mean: float(m), std_dev=lambda _, d=deviation: d)
        # The mean is a float64, so of 10**15 its last digit is 0.1.
        scores = [float((each - mean) / Fraction(deviation)) if deviation else 0.0 for each in exact]
        error = 1e-6 + float(np.spacing(float(abs(mean)))) / (deviation or 1)
        np.testing.assert_allclose(z_score({"x": values}, "x", constants), scores, atol=error, rtol=1e-6)


def test_boundaries_of_integers_are_exact_at_the_ends() -> None:
    values = tf.constant([-(2**63), 2**53, 2**53 + 1, 2**63 - 1])
    assert bucketize(values, [-math.inf, 2**53 + 1, 2.0**63, math.inf]).numpy().tolist() == [1, 1, 2, 2]
    assert bucketize(tf.constant([0.1, 0.7], tf.float32), [0.1, 0.7]).numpy().tolist() == [1, 2]


@pytest.mark.parametrize("boundaries", [[1.0, 0.0], [0.0, math.nan]])
def test_boundaries_out_of_order_are_refused(boundaries: list[float]) -> None:
    with pytest.raises(BadInput, match=r"bucketize\(\): boundaries is .*expected numbers in ascending order"):
        bucketize(tf.constant([0.5]), boundaries)
