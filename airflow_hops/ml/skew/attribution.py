"""Effect of each feature's drift on the model's predictions."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_hops.core.artifacts.target import BINARY, Problem
from airflow_hops.core.errors import BadInput, InvalidArgument
from airflow_hops.core.json_fields import JsonFields
from airflow_hops.ml.features.raw_features import dense_arrays
from airflow_hops.ml.readers.vectors import split_dtype
from airflow_hops.ml.statistics.formats.feature_types import as_example, is_list
from airflow_hops.ml.statistics.generate import collect_statistics, sampling_options

if TYPE_CHECKING:
    from airflow_hops.ml.metrics.scoring import ScoredModel

ROWS = 2_000
"""Rows that are scored for each feature."""

SAMPLE_ROWS = 20_000
"""Rows that the features' distributions are computed from: a smaller sample differs by chance."""


@dataclass(frozen=True)
class Effect(JsonFields):
    """The effect of a feature's drift on predictions.

    Attributes:
        effect: Mean absolute change of a prediction: of a probability, 0 to 1; in a regression, in the label's unit;
            with several classes, the total variation (half of the sum of the absolute changes), 0 to 1.
        effect_signed: Mean change caused by the drift: above 0 if it raises predictions; None with several classes.
        standard_error: Standard error of ``effect``.
        by_class: With several classes, the mean change of the probability of each.
    """

    effect: float
    effect_signed: float | None
    standard_error: float
    by_class: Mapping[str, float] | None = None


@dataclass(frozen=True)
class Attribution(JsonFields):
    """Effects of drift on predictions.

    Attributes:
        effects: Effects by feature, largest first; empty if there is a ``note``.
        prediction_reference: Mean prediction over rows of the reference; None if there is a ``note``, or with several
            classes.
        prediction_current: Mean prediction over current rows.
        note: Reason for a missing attribution, or None.
        by_class: With several classes, the mean probability of each over rows of the reference, and over current rows.

    Example:
        >>> from airflow_hops import Attribution
        >>> Attribution(note="the model takes images").effects
        {}
    """

    effects: Mapping[str, Effect] = field(default_factory=dict)
    rows: int = 0
    prediction_reference: float | None = None
    prediction_current: float | None = None
    note: str | None = None
    problem: Problem = BINARY
    by_class: Mapping[str, tuple[float, float]] | None = None


def attribute_drift(
    model: str | Path | ScoredModel,
    reference: object,
    current: object,
    *,
    features: Collection[str] | None = None,
    rows: int = ROWS,
    seed: int = 0,
    classes: Sequence[str] | None = None,
) -> Attribution:
    """Restores the reference distribution of one feature at a time, and measures how predictions change.

    One feature is changed in the current rows, the others stay, and the model predicts again, as in the importance of
    Breiman (Random Forests, 2001) and in the interventional view of Janzing, Minorics and Blöbaum (Feature relevance
    quantification in explainable AI, 2020). The new values are not independent draws, which would measure a feature's
    importance even without drift, but the smallest change that restores the distribution (an optimal transport; cf.
    Budhathoki, Janzing, Blöbaum and Ng, Why did the distribution change?, 2021): numbers take the reference's value at
    the same rank, and as few strings and missing values are replaced as the shares allow. Vectors only get the
    reference's means and covariances, by the smallest linear change, in the directions in which they vary; if all are
    equal, they are drawn from the reference. A feature that has not drifted has an effect near 0.

    Args:
        model: A SavedModel whose signature ``serving_default`` takes raw features.
        reference: Rows that the model was trained on, or a uniform sample of them: a source as
            :func:`~airflow_hops.ml.statistics.generate_statistics` takes.
        current: The same for the current rows.
        features: Features to examine; None for all inputs of the model.
        rows: Number of rows to score for each feature.
        seed: Seed of the samples.
        classes: Names of the model's classes, if there are several; None for their numbers.

    Raises:
        BadInput: the model does not load, a side lacks one of its inputs or has no rows, or a prediction is not finite.
    """
    from airflow_hops.ml.metrics.scoring import ScoredModel

    if rows < 2:
        raise InvalidArgument("rows", rows, ", expected at least 2")
    if not isinstance(model, ScoredModel):
        model = ScoredModel(Path(model))
    classes = [str(number) for number in range(model.classes or 0)] if classes is None else classes
    names = [name for name in model.inputs if features is None or name in features]
    random = np.random.default_rng(seed)
    base = _sampled(reference, model.inputs, "reference", random)
    new = _sampled(current, model.inputs, "current", random)
    scored = {name: values[:rows] for name, values in new.items()}
    predicted = predict(model, scored)
    effects = {}
    for name in names:
        restored = restore(new[name], base[name], random)[:rows]
        change = predicted - predict(model, {**scored, name: restored})
        size = np.abs(change) if change.ndim == 1 else np.abs(change).sum(axis=1) / 2
        error = float(size.std(ddof=1) / len(size) ** 0.5) if len(size) > 1 else 0.0
        mean, moved = float(size.mean()), change.mean(axis=0)
        effects[name] = (
            Effect(mean, float(moved), error)
            if change.ndim == 1
            else Effect(mean, None, error, dict(zip(classes, moved.tolist(), strict=True)))
        )
    means = [p.mean(axis=0) for p in (predict(model, {name: v[:rows] for name, v in base.items()}), predicted)]
    several = predicted.ndim == 2
    return Attribution(
        effects=dict(sorted(effects.items(), key=lambda item: -item[1].effect)),
        rows=len(predicted),
        prediction_reference=None if several else float(means[0]),
        prediction_current=None if several else float(means[1]),
        problem=model.problem,
        by_class=dict(zip(classes, zip(*(m.tolist() for m in means), strict=True), strict=True)) if several else None,
    )


def restore(values: Any, reference: Any, random: Any) -> Any:
    """Returns values that are distributed like the reference, with as few and small changes as possible.

    Args:
        values: ``[rows]``: floats (NaN if missing), integers, or bytes as objects; or vectors, floats ``[rows,
            width]``.
        reference: Values of the same type, ``[reference_rows]`` or ``[reference_rows, width]``.
        random: ``numpy.random.Generator``, which breaks ties.
    """
    if values.dtype == object:
        return _restore_shares(values, reference, random)
    if values.ndim == 2:
        return _restore_vectors(values, reference, random)
    missing, lacking = np.isnan(values), np.isnan(reference)
    there, result = ~missing, values.copy()
    if missing.any() or lacking.any():
        there = _restore_shares(there, ~lacking, random)
        result[~there] = np.nan
    retained = np.flatnonzero(there & ~missing)
    pool = np.sort(reference[~lacking])
    # Equal values are ranked at random, so that they spread evenly over the reference's.
    order = retained[np.lexsort((random.random(len(retained)), values[retained]))]
    result[order] = pool[((np.arange(len(order)) + 0.5) * len(pool) / max(1, len(order))).astype(np.int64)]
    results = np.flatnonzero(there & missing)
    result[results] = random.choice(pool, len(results))
    return result


def _restore_vectors(values: Any, reference: Any, random: Any) -> Any:
    """Gives vectors the reference's share of missing values, its means, and its covariances where values vary.

    If all values are equal, they are drawn from the reference. The change is the optimal transport between normal
    distributions (Olkin and Pukelsheim, "The distance between two random vectors with given dispersion matrices",
    1982).
    """
    missing, lacking = (np.isnan(side).any(axis=1) for side in (values, reference))
    pool, there, result = reference[~lacking].astype(np.float64), ~missing, values.copy()
    if missing.any() or lacking.any():
        there = _restore_shares(there, ~lacking, random)
        result[~there] = np.nan
    retained, results = there & ~missing, there & missing
    now = values[~missing].astype(np.float64)
    if len(pool) and (now == now[:1]).all():
        results = there
    elif len(pool) and retained.any():
        ours, theirs = (np.atleast_2d(np.cov(side, rowvar=False, bias=True)) for side in (now, pool))
        root, inverse = _power(ours, 0.5), _power(ours, -0.5)
        transport = inverse @ _power(root @ theirs @ root, 0.5) @ inverse
        result[retained] = (values[retained] - now.mean(axis=0)) @ transport + pool.mean(axis=0)
    if len(pool):
        result[results] = pool[random.integers(len(pool), size=int(results.sum()))]
    return result


def _power(covariances: Any, exponent: float) -> Any:
    """Returns a power of a symmetric matrix; 0 in directions without variance."""
    variances, directions = np.linalg.eigh(covariances)
    varied = variances > max(variances.max(), 0.0) * 1e-9
    powers = np.zeros_like(variances)
    powers[varied] = variances[varied] ** exponent
    return (directions * powers) @ directions.T


def _restore_shares(values: Any, reference: Any, random: Any) -> Any:
    """Gives values the reference's shares: some too frequent values are replaced by too rare ones."""
    kinds, codes = np.unique(np.concatenate([values, reference]), return_inverse=True)
    now, then = codes[: len(values)], codes[len(values) :]
    counts = np.bincount(now, minlength=len(kinds))
    shares = np.bincount(then, minlength=len(kinds)) * len(values) / len(reference)
    wanted = np.floor(shares).astype(np.int64)
    wanted[np.argsort(wanted - shares, kind="stable")[: len(values) - wanted.sum()]] += 1
    # Keeps the first rows of each value, in random order.
    order = np.lexsort((random.random(len(now)), now))
    place = np.arange(len(now)) - np.repeat(np.cumsum(counts) - counts, counts)
    leaving = order[place >= wanted[now[order]]]
    coming = random.permutation(np.repeat(kinds, np.maximum(wanted - counts, 0)))
    result = values.copy()
    result[leaving] = coming
    return result


def dense_rows(sample: Any, inputs: Mapping[str, str], side: str) -> dict[str, Any]:
    """Returns the inputs of a model in a table of rows as dense arrays.

    Raises:
        BadInput: there are no rows, an input is missing, or a row has several values of one.
    """
    if not sample.num_rows:
        raise BadInput(f"{side}: no rows")
    table = sample.select([name for name in inputs if name in sample.column_names]).combine_chunks()
    columns = as_example(table.to_batches()[0], side)
    single = {n: _single(columns.column(n), n, inputs[n], side) for n in columns.schema.names}
    return dense_arrays(pa.table(single), inputs, side)


def _sampled(source: Any, inputs: Mapping[str, str], side: str, random: Any) -> dict[str, Any]:
    """Draws a uniform sample of rows in random order, as dense arrays."""
    table = source
    if not isinstance(source, pa.Table):
        table = collect_statistics(source, options=sampling_options(list(inputs))).sample
    return dense_rows(table.take(pa.array(random.permutation(table.num_rows)[:SAMPLE_ROWS])), inputs, side)


def _single(column: Any, name: str, dtype: str, side: str) -> object:
    if split_dtype(dtype)[1] is not None:
        return column
    values = singles(column)
    if values is None:
        most = column.value_lengths().to_pandas().max()
        raise BadInput(f"{side}: column {name!r} has {most:.0f} values in a row; the model takes one")
    return values


def singles(column: Any) -> Any:
    """Returns a canonical column with one value per row, null for an empty list; None if a row has several values."""
    if not is_list(column.type):
        return column
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    if lengths.max(initial=0) > 1:
        return None
    return column.flatten().take(pa.array(np.cumsum(lengths) - lengths, mask=lengths == 0))


def predict(model: ScoredModel, arrays: Mapping[str, Any]) -> Any:
    """Returns predictions for dense arrays, ``[rows]`` or ``[rows, classes]``; raises ``BadInput`` if not finite."""
    from airflow_hops.ml.metrics.scoring import BATCH_ROWS

    rows = len(next(iter(arrays.values())))
    parts = [
        model.predict({name: values[start : start + BATCH_ROWS] for name, values in arrays.items()})
        for start in range(0, rows, BATCH_ROWS)
    ]
    predicted = np.concatenate(parts).astype(np.float64)
    finite = np.isfinite(predicted).reshape(rows, -1).all(axis=1)
    if not finite.all():
        raise BadInput(f"{model.path}: {model.output!r} is NaN or infinite in {int((~finite).sum())} rows")
    return predicted
