"""Scores how well each column alone predicts the label, to detect leaks."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_hops.core.artifacts.target import REGRESSION, Problem

TELLS = 0.999
"""Score at which a column is left out: real features rarely predict this well."""
SUSPICIOUS = 0.98

_SO_LIKE_THE_LABEL = 1 - 1e-9
_MOST_ROWS = 10_000
_FEWEST_ROWS = 40
_FEWEST_OF_CLASS = 10
_LEAF_ROWS = {True: 2, False: 1}


def score_alone(column: pa.ChunkedArray, label: pa.ChunkedArray, problem: Problem) -> float | None:
    """Returns how well a column alone predicts the label on held-out rows; a missing value counts as a value.

    Returns:
        The AUC (one against the rest, the mean over classes); for a regression the R² of ranks, so that curves and
        heavy tails do not matter. None with too few rows.
    """
    from sklearn.metrics import r2_score, roc_auc_score
    from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

    is_regression = problem == REGRESSION
    chosen = np.flatnonzero(pc.is_valid(label).to_numpy())
    chosen = np.random.default_rng(0).permutation(chosen)[:_MOST_ROWS]
    y = _ranks(label.take(chosen))
    if not is_regression:
        enough = np.bincount(y)[y] >= _FEWEST_OF_CLASS
        chosen, y = chosen[enough], np.unique(y[enough], return_inverse=True)[1]
    if len(y) < _FEWEST_ROWS or len(np.unique(y)) < 2:
        return None
    values = column.take(chosen)
    is_missing = pc.is_null(values, nan_is_null=True).to_numpy()
    x = _ranks(values.cast(pa.string()) if pa.types.is_boolean(values.type) else values).astype(float)
    learn = _halves(y, is_regression)
    if pa.types.is_string(values.type):  # ordered by their mean label, so that a tree needs few cuts
        codes = x.astype(int)
        rows, sums = (np.bincount(codes[learn], weights, codes.max() + 1) for weights in (None, y[learn]))
        with np.errstate(invalid="ignore"):
            x = (sums / rows)[codes]
    elif not is_regression and not pa.types.is_boolean(values.type):
        # Values instead of ranks, as a tree cuts in the middle of a gap; scaled, as float32 is too coarse for times.
        numbers = values.cast(pa.float64(), safe=False).fill_null(np.nan).to_numpy()
        finite = numbers[np.isfinite(numbers)]
        low, width = (finite.min(), np.ptp(finite) or 1) if len(finite) else (0, 1)
        x = np.clip((numbers - low) / width, -0.5, 1.5)  # infinite ones beside the others
    x[is_missing] = np.nan
    x = x.reshape(-1, 1)
    tree = (DecisionTreeRegressor if is_regression else DecisionTreeClassifier)(
        min_samples_leaf=_LEAF_ROWS[is_regression], random_state=0
    ).fit(x[learn], y[learn])
    # A tree cuts anywhere between the last row of one class and the first of another: score the order, too.
    held_out, truth, order = x[~learn], y[~learn], np.nan_to_num(x[~learn, 0], nan=-1)
    if is_regression:
        alike = np.corrcoef(order, truth)[0, 1] ** 2 if np.ptp(order) else 0.0
        return max(float(alike), float(r2_score(truth, tree.predict(held_out))))
    shares = tree.predict_proba(held_out)
    if shares.shape[1] > 2:
        return float(roc_auc_score(truth, shares, multi_class="ovr"))
    ordered = float(roc_auc_score(truth, order))
    return max(ordered, 1 - ordered, float(roc_auc_score(truth, shares[:, 1])))


def repeats_label(column: pa.ChunkedArray, label: pa.ChunkedArray, problem: Problem) -> bool:
    """Returns whether a column is the label in other words: each value goes with one of its, or on another scale."""
    both = pc.and_(pc.is_valid(column), pc.is_valid(label))
    mine, its = column.filter(both).combine_chunks(), label.filter(both).combine_chunks()
    if problem != REGRESSION:
        codes, classes = (array.dictionary_encode() for array in (mine, its))
        values, labels = len(codes.dictionary), len(classes.dictionary)
        pairs = len(np.unique(codes.indices.to_numpy().astype(np.int64) * labels + classes.indices.to_numpy()))
        return pairs == values == labels > 1 and labels <= len(mine) / 2
    is_number = pa.types.is_integer(mine.type) or pa.types.is_floating(mine.type) or pa.types.is_decimal(mine.type)
    if not is_number or len(mine) < 3:
        return False
    x, y = (array.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False) for array in (mine, its))
    with np.errstate(all="ignore"):
        return bool(abs(np.corrcoef(x, y)[0, 1]) > _SO_LIKE_THE_LABEL)


def _ranks(values: pa.ChunkedArray) -> np.ndarray:
    """Returns the rank of each value among the different ones; missing values rank first."""
    filled = values.fill_null("" if pa.types.is_string(values.type) else 0) if values.null_count else values
    ranks: np.ndarray = np.unique(filled.to_numpy(), return_inverse=True)[1]
    return ranks


def _halves(y: np.ndarray, is_regression: bool) -> np.ndarray:
    """Returns a mask of the rows to learn from: half of each class."""
    order = np.arange(len(y)) if is_regression else np.argsort(y, kind="stable")
    learn = np.zeros(len(y), bool)
    learn[order[::2]] = True
    return learn
