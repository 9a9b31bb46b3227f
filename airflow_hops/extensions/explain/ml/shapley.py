"""Shapley values of raw features: how much each value of a row moves its prediction away from the background's mean.

The value of a coalition S of features is the mean prediction of the background rows whose features in S are replaced
by the explained row's (the interventional value function; Lundberg and Lee, "A unified approach to interpreting model
predictions", 2017; Covert, Lundberg and Lee, "Explaining by removing", 2021). Two ways to average over coalitions:

- Up to ``EXACT_FEATURES`` features, all of them are computed: exact, without errors.
- Else permutations are sampled (Štrumbelj and Kononenko, "Explaining prediction models and individual predictions with
  feature contributions", 2014): from a background row, the features become the explained row's one by one; the change
  at each step is a contribution of its feature. Each background row has ``pairs`` permutations, each with its reverse
  (antithetic sampling). Contributions telescope, so they add up to prediction minus base whatever was sampled. Errors
  are of the permutations alone, since every background row is used: 0 for an additive model. They are estimated from
  the differences of ``pairs`` values: with 4, such intervals of tree ensembles hold 90 to 95% of the exact values.

All rows share the sampled permutations: the result depends neither on the order nor on the division of the rows.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist

import numpy as np

from airflow_hops.core.errors import BadInput
from airflow_hops.extensions.explain.ml.tree_models import NotTrees, TreeModel

log = logging.getLogger(__name__)

Array = np.ndarray
Predict = Callable[[Mapping[str, Array]], Array]
"""Returns predictions ``[rows]``, or ``[rows, classes]``, of raw features ``[rows]`` or ``[rows, width]`` by name."""

EXACT_FEATURES = 8
Z95 = NormalDist().inv_cdf(0.975)


@dataclass(frozen=True)
class Contributions:
    """Shapley values of a row.

    Attributes:
        values: ``[features]``; their sum is ``prediction`` minus ``base``.
        errors: Half of the width of each 95% interval, ``[features]``.
        output: Number of the explained output: the likeliest class, 0 without classes.
    """

    values: Array
    errors: Array
    prediction: float
    base: float
    output: int


@dataclass
class Explainer:
    """Explains rows against a background.

    Args:
        predict: The model.
        background: Raw features of the background by name, ``[background_rows]`` or ``[background_rows, width]``.
        pairs: Permutations for each background row, each also in reverse; 2 or more, to know their errors.
        seed: Seed of the permutations.
        trees: The model's trees, if its predictions are sums of them.
    """

    predict: Predict
    background: Mapping[str, Array]
    pairs: int = 4
    seed: int = 0
    trees: TreeModel | None = None

    @cached_property
    def features(self) -> tuple[str, ...]:
        """Names of the features in the order of the contributions."""
        return tuple(self.background)

    @cached_property
    def background_rows(self) -> int:
        """Number of rows of the background."""
        return len(next(iter(self.background.values())))

    @property
    def is_exact(self) -> bool:
        """Whether contributions are computed and not sampled."""
        return self.trees is not None or len(self.features) <= EXACT_FEATURES

    @property
    def predictions_per_row(self) -> int:
        """Number of predictions that a row needs; with trees, rows of their matrix are counted too."""
        if self.trees is not None:
            return 2 * len(self.features) + 2
        return predictions_per_row(len(self.features), self.background_rows, self.pairs)

    def explain(self, rows: Mapping[str, Array]) -> list[Contributions]:
        """Explains rows, given as arrays ``[rows]`` or ``[rows, width]``."""
        predicted = _two_dimensional(self.predict(rows))
        outputs = predicted.argmax(axis=1)
        if self.trees is not None:
            try:
                explained = zip(*self.trees.explain(rows, predicted, outputs), outputs.tolist(), strict=True)
                nothing = np.zeros(len(self.features))
                return [
                    Contributions(explained_values, nothing, float(p), float(base), output)
                    for explained_values, p, base, output in explained
                ]
            except NotTrees as error:
                if self.trees.log_odds:
                    raise BadInput(f"log_odds is True, but {error}; leave log_odds out") from error
                log.warning("Contributions are sampled from here on: %s", error)
                self.trees = None
        compute = self._exact if self.is_exact else self._sampled
        result = []
        for row, of_row, output in zip(single_rows(rows), predicted, outputs.tolist(), strict=True):
            base, prediction = self.background_predictions[:, output], float(of_row[output])
            values, errors = compute(row, output, prediction, base)
            result.append(Contributions(values, errors, prediction, float(base.mean()), output))
        return result

    @cached_property
    def background_predictions(self) -> Array:
        """Predictions of the background, ``[background_rows, outputs]``."""
        return _two_dimensional(self.predict(self.background))

    def _mixed(self, row: Mapping[str, Array], masks: Array, output: int) -> Array:
        """Predicts background rows whose masked features are the row's; masks are ``[states, rows, features]``."""
        states = masks.shape[0]
        arrays = {}
        for number, (name, values) in enumerate(self.background.items()):
            tiled = np.concatenate([values] * (states * masks.shape[1] // len(values)))
            mask = masks[:, :, number].reshape(-1, *[1] * (values.ndim - 1))
            arrays[name] = np.where(mask, row[name], tiled)
        return _two_dimensional(self.predict(arrays))[:, output].reshape(states, -1)

    def _exact(self, row: Mapping[str, Array], output: int, prediction: float, base: Array) -> tuple[Array, Array]:
        count = len(self.features)
        sets = (np.arange(1, 2**count - 1)[:, None] >> np.arange(count) & 1).astype(bool)
        worth = np.full(2**count, prediction)
        worth[0] = base.mean()
        if len(sets):
            masks = np.broadcast_to(sets[:, None], (len(sets), self.background_rows, count))
            worth[1:-1] = self._mixed(row, masks, output).mean(axis=1)
        numbers = np.arange(2**count)
        sizes = np.array([int(number).bit_count() for number in numbers])
        weights = np.array([1 / (count * math.comb(count - 1, size)) for size in range(count)])
        values = np.empty(count)
        for number in range(count):
            without = numbers[(numbers >> number & 1) == 0]
            values[number] = (weights[sizes[without]] * (worth[without | 1 << number] - worth[without])).sum()
        return values, np.zeros(count)

    def _sampled(self, row: Mapping[str, Array], output: int, prediction: float, base: Array) -> tuple[Array, Array]:
        count, rows = len(self.features), self.background_rows
        worth = np.empty((2 * self.pairs, count + 1, rows))
        worth[:, 0], worth[:, -1] = base, prediction
        for walk, position in enumerate(self._positions):  # one at a time, to bound memory
            masks = position[None] < np.arange(1, count)[:, None, None]
            worth[walk, 1:-1] = self._mixed(row, masks, output)
        steps = np.diff(worth, axis=1)  # [walks, positions, rows]
        by_feature = np.take_along_axis(steps, self._positions.transpose(0, 2, 1), axis=1)
        pairs = (by_feature[0::2] + by_feature[1::2]) / 2  # a permutation and its reverse
        variance = pairs.var(axis=0, ddof=1).mean(axis=1) / (self.pairs * rows)
        return pairs.mean(axis=(0, 2)), Z95 * np.sqrt(variance)

    @cached_property
    def _positions(self) -> Array:
        """Position of each feature in each permutation, ``[walks, rows, features]``; odd walks are reversed."""
        random = np.random.default_rng(self.seed)
        count = len(self.features)
        drawn = random.random((self.pairs, self.background_rows, count)).argsort(axis=-1).argsort(axis=-1)
        return np.stack([drawn, count - 1 - drawn], axis=1).reshape(-1, self.background_rows, count)


def predictions_per_row(features: int, background_rows: int, pairs: int) -> int:
    """Returns the number of predictions that the Shapley values of a row need."""
    states = 2**features - 2 if features <= EXACT_FEATURES else 2 * pairs * (features - 1)
    return states * background_rows + 1


def single_rows(arrays: Mapping[str, Array]) -> Iterator[dict[str, Array]]:
    """Yields the rows of arrays one by one, as arrays of one row."""
    for number in range(len(next(iter(arrays.values())))):
        yield {name: values[number : number + 1] for name, values in arrays.items()}


def _two_dimensional(predicted: Array) -> Array:
    return predicted.reshape(len(predicted), -1)
