"""How the models of a fleet are trained: linear models, boosted trees, or a function of the user."""

from __future__ import annotations

import copy
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from airflow_hops.core.artifacts.target import BINARY, MULTICLASS, REGRESSION, Problem
from airflow_hops.core.errors import BadInput
from airflow_hops.core.stability import experimental
from airflow_hops.extensions.fleet.core import packs
from airflow_hops.extensions.fleet.core.linear import linear_answers, weights_from_bytes, weights_to_bytes
from airflow_hops.extensions.fleet.core.options import LINEAR, TREES
from airflow_hops.extensions.fleet.core.packs import CONTINUED, OWN
from airflow_hops.extensions.fleet.ml.columns import FOLDS, TrainingRows

_RIDGE = 1.0
_NEWTON_STEPS = 25


@dataclass(frozen=True)
class Strategy:
    """How a model of a segment may be trained: from scratch, or from the pooled one with a ``strength`` towards it."""

    state: str
    strength: float = 0.0

    def __str__(self) -> str:
        return self.state if not self.strength else f"{self.state} (strength {self.strength:g})"


class Learner(ABC):
    """Trains the models of a fleet.

    Attributes:
        format: Format of the packed models.
        folds: Fifths of a segment's rows that are held out, one after the other, to choose its model.
        strategies: Models to choose among, besides the pooled one.
        pooled_rows: Most rows that the pooled model learns from.
    """

    format: ClassVar[str]
    folds: ClassVar[Sequence[int]]
    strategies: Sequence[Strategy]
    pooled_rows: ClassVar[int] = 300_000

    def __init__(self, problem: Problem, classes: int, seed: int) -> None:
        self.problem, self.classes, self.seed = problem, classes, seed

    @abstractmethod
    def fit(self, rows: TrainingRows, strategy: Strategy | None = None, pooled: Any = None) -> Any:
        """Returns a model of rows; the pooled one without a ``strategy``. None if there is none of this strategy."""

    @abstractmethod
    def answers(self, model: Any, matrix: np.ndarray) -> np.ndarray:
        """Returns numbers or probabilities of the second class, ``[rows]``, or of all classes ``[rows, classes]``."""

    @abstractmethod
    def payload(self, model: Any, matrix: np.ndarray) -> bytes:
        """Returns the packed model. Raises BadInput if its answers for some rows differ from the model's."""

    def restored(self, payload: bytes, width: int) -> Any:
        """Returns the pooled model of a payload, if it can be continued from; None if it cannot."""
        return None

    def missing_classes(self, rows: TrainingRows) -> list[int]:
        """Returns the numbers of classes that no row has; none for a regression."""
        return (
            [] if self.problem == REGRESSION else sorted({*range(self.classes)} - {*rows.labels.astype(int).tolist()})
        )

    def losses(self, model: Any, rows: TrainingRows) -> np.ndarray:
        """Returns the loss of each row, ``[rows]``: the squared error, or the negative log-likelihood."""
        answers = self.answers(model, rows.matrix)
        if self.problem == REGRESSION:
            squares: np.ndarray = np.square(answers - rows.labels)
            return squares
        numbers = rows.labels.astype(np.intp)
        if self.problem == MULTICLASS:
            likely = answers[np.arange(len(rows)), numbers]
        else:
            likely = np.where(numbers == 1, answers, 1.0 - answers)
        losses: np.ndarray = -np.log(np.clip(likely, 1e-7, 1.0))
        return losses


class LinearLearner(Learner):
    """Ridge regression, or logistic regression with a ridge; towards zero, or towards the pooled model's weights.

    The ridge of a model that continues is ``strength`` rows' worth of squared difference from the pooled weights, so
    that a segment with few rows stays near them.
    """

    format = packs.LINEAR
    folds = tuple(range(FOLDS))
    strategies = (Strategy(OWN), *(Strategy(CONTINUED, strength) for strength in (10.0, 100.0, 1000.0)))

    def fit(self, rows: TrainingRows, strategy: Strategy | None = None, pooled: Any = None) -> Any:
        """Returns the weights, ``[outputs, 1 + width]``."""
        design = np.concatenate([np.ones((len(rows), 1)), rows.matrix], axis=1)
        outputs = self.classes if self.problem == MULTICLASS else 1
        continues = strategy is not None and strategy.state == CONTINUED
        centre = pooled if continues else np.zeros((outputs, design.shape[1]))
        ridge = np.full(design.shape[1], strategy.strength if strategy and continues else _RIDGE)
        if not continues:
            ridge[0] = 1e-6  # the intercept is free
        if self.problem == REGRESSION:
            return _ridge(design, rows.labels, rows.weights, centre[0], ridge)[np.newaxis]
        if self.problem != MULTICLASS:
            return _logistic(design, rows.labels, rows.weights, centre[0], ridge)[np.newaxis]
        return _softmax(design, rows.labels.astype(np.intp), rows.weights, centre, ridge)

    def answers(self, model: Any, matrix: np.ndarray) -> np.ndarray:
        """As the server answers."""
        return linear_answers(model, matrix, self.problem)

    def payload(self, model: Any, matrix: np.ndarray) -> bytes:
        """Returns the weights' bytes."""
        if not np.isfinite(model).all():
            raise BadInput("the weights are not all finite")
        return weights_to_bytes(model)

    def restored(self, payload: bytes, width: int) -> Any:
        """Returns the weights."""
        return weights_from_bytes(payload, self.classes if self.problem == MULTICLASS else 1, width)


def _ridge(design: np.ndarray, labels: np.ndarray, weights: np.ndarray, centre: np.ndarray, ridge: np.ndarray) -> Any:
    weighted = design * weights[:, np.newaxis]
    return centre + np.linalg.solve(design.T @ weighted + np.diag(ridge), weighted.T @ (labels - design @ centre))


def _logistic(
    design: np.ndarray, labels: np.ndarray, weights: np.ndarray, centre: np.ndarray, ridge: np.ndarray
) -> Any:
    """Newton's method with halved steps where one would not lower the loss; convex, so from any start the same."""

    def loss(values: np.ndarray) -> float:
        scores = design @ values
        return float(weights @ (np.logaddexp(0.0, scores) - labels * scores) + 0.5 * ridge @ np.square(values - centre))

    values, best = centre, loss(centre)
    for _ in range(_NEWTON_STEPS):
        chances = 0.5 * (1.0 + np.tanh(0.5 * (design @ values)))
        gradient = design.T @ (weights * (chances - labels)) + ridge * (values - centre)
        hessian = design.T @ (design * (weights * chances * (1.0 - chances))[:, np.newaxis]) + np.diag(ridge)
        step = np.linalg.solve(hessian, gradient)
        size = 1.0
        while (lower := loss(values - size * step)) > best and size > 1e-4:
            size /= 2
        if lower > best:
            break
        is_last = best - lower <= 1e-9 * (1.0 + abs(best))
        values, best = values - size * step, lower
        if is_last:
            break
    return values


def _softmax(design: np.ndarray, labels: np.ndarray, weights: np.ndarray, centre: np.ndarray, ridge: np.ndarray) -> Any:
    from scipy.optimize import minimize
    from scipy.special import logsumexp, softmax

    rows = np.arange(len(labels))

    def loss(flat: np.ndarray) -> tuple[float, np.ndarray]:
        values = flat.reshape(centre.shape)
        scores = design @ values.T
        errors = softmax(scores, axis=1)
        errors[rows, labels] -= 1.0
        off = values - centre
        total = weights @ (logsumexp(scores, axis=1) - scores[rows, labels]) + 0.5 * (ridge * off * off).sum()
        return float(total), ((errors * weights[:, np.newaxis]).T @ design + ridge * off).ravel()

    return minimize(loss, centre.ravel(), jac=True, method="L-BFGS-B", options={"maxiter": 200}).x.reshape(centre.shape)


@experimental
@dataclass(frozen=True)
class SegmentRows:
    """Argument of a user's training function.

    Attributes:
        matrix: Encoded features, float32 ``[rows, width]``: standardised numbers, 0 for a missing one, and a column of
            0 and 1 for each value of a category.
        labels: Class numbers, int64, or values, float64 ``[rows]``.
        weights: Weights, float64 ``[rows]``.
        pooled: The pooled model, to continue from it; None if the function is to train one from scratch.
        seed: Seed of the task.

    Example:
        >>> import numpy as np
        >>> from airflow_hops.extensions.fleet import SegmentRows
        >>> rows = SegmentRows(np.eye(3, dtype=np.float32), np.array([1.0, 2.0, 3.0]), np.ones(3), None, 0)
        >>> rows.matrix.shape, rows.pooled is None
        ((3, 3), True)
    """

    matrix: np.ndarray
    labels: np.ndarray
    weights: np.ndarray
    pooled: Any
    seed: int


class FunctionLearner(Learner):
    """A function that returns an estimator of scikit-learn's kind, or a small Keras model of dense layers.

    Args:
        name: The function, or ``trees`` for :func:`boosted`.
    """

    format = packs.ONNX
    folds = (0,)
    strategies = (Strategy(OWN), Strategy(CONTINUED, 1.0))
    pooled_rows = 50_000

    def __init__(self, problem: Problem, classes: int, seed: int, name: str) -> None:
        super().__init__(problem, classes, seed)
        self.name = name

    def fit(self, rows: TrainingRows, strategy: Strategy | None = None, pooled: Any = None) -> Any:
        """Calls the function; None if it returns none, since it does not train such models."""
        from airflow_hops.ml.step.context import resolve

        start = pooled if strategy is not None and strategy.state == CONTINUED else None
        labels = rows.labels if self.problem == REGRESSION else rows.labels.astype(np.int64)
        argument = SegmentRows(rows.matrix.astype(np.float32), labels, rows.weights, start, self.seed)
        model = boosted(argument, self.problem) if self.name == TREES else resolve(self.name)(argument)
        if model is None and strategy in (None, Strategy(OWN)):
            raise BadInput(f"{self.name} returned None; expected a trained model")
        return model

    def answers(self, model: Any, matrix: np.ndarray) -> np.ndarray:
        """As the estimator answers, or the Keras model. Raises BadInput if it answers no such problem."""
        is_keras = hasattr(model, "predict_on_batch")
        name = "predict_on_batch" if is_keras else "predict" if self.problem == REGRESSION else "predict_proba"
        answers = np.asarray(getattr(model, name)(matrix.astype(np.float32)), np.float64).reshape(len(matrix), -1)
        outputs = 2 - is_keras if self.problem == BINARY else self.classes if self.problem == MULTICLASS else 1
        if answers.shape[1] != outputs:
            raise BadInput(
                f"{self.name} returned a model with answers {answers.shape}; expected {outputs} for each row"
            )
        if self.problem != REGRESSION and not ((answers >= 0) & (answers <= 1)).all():
            raise BadInput(
                f"{self.name} returned a model that answers {answers.min():.3g} to {answers.max():.3g}; expected "
                "probabilities, so end it with a sigmoid or softmax"
            )
        return answers if self.problem == MULTICLASS else answers[:, -1]

    def payload(self, model: Any, matrix: np.ndarray) -> bytes:
        """Returns an ONNX graph."""
        from airflow_hops.extensions.fleet.ml.graphs import checked, dense_layers, estimator_graph

        is_keras = hasattr(model, "predict_on_batch")
        graph = dense_layers(model) if is_keras else estimator_graph(model, self.problem, matrix)
        return checked(graph, self.problem, matrix, self.answers(model, matrix))


def boosted(rows: SegmentRows, problem: Problem) -> Any:
    """Returns gradient-boosted trees of scikit-learn; those that continue are added to the pooled ones."""
    from sklearn.ensemble import GradientBoostingClassifier, GradientBoostingRegressor

    if rows.pooled is not None:
        model = copy.deepcopy(rows.pooled).set_params(n_estimators=60, warm_start=True)
    else:
        kind = GradientBoostingRegressor if problem == REGRESSION else GradientBoostingClassifier
        options = {"max_depth": 3, "min_samples_leaf": 10, "subsample": 0.5, "max_features": "sqrt"}
        model = kind(n_estimators=40, random_state=rows.seed, **options)
    return model.fit(rows.matrix, rows.labels, sample_weight=rows.weights)


def learner_of(model: str, problem: Problem, classes: int, seed: int) -> Learner:
    """Returns the learner that the option ``model`` names."""
    if model == LINEAR:
        return LinearLearner(problem, classes, seed)
    return FunctionLearner(problem, classes, seed, model)


def code_key() -> str:
    """Returns the state of the code that trains segments; another one would train them otherwise.

    It is not the package's: an update of anything else does not train thousands of models again.
    """
    here = Path(__file__).parent
    names = ("columns", "graphs", "learners", "rows", "segment_rules", "segments")
    digest = hashlib.sha256(version("scikit-learn").encode())
    for file in (*(here / f"{name}.py" for name in names), here.parent / "core" / "linear.py"):
        digest.update(file.read_bytes())
    return digest.hexdigest()
