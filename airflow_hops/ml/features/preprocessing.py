"""Building blocks of preprocessing functions: TensorFlow operations with defined results for missing values.

A raw feature is a dense tensor of shape ``[batch]`` or, for vectors, ``[batch, width]``: a missing float is NaN, a
missing vector is all NaN, a missing string is empty. Every function here processes each row independently, so that
training and serving compute the same values. Integers, such as times in seconds since the epoch, are compared and
subtracted before they are rounded to float32, which keeps only 24 bits of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import tensorflow as tf

from airflow_hops.core.errors import BadInput
from airflow_hops.ml.features.constants import Constants, Vocabulary

_INT64 = 2**63


def fill_missing(values: tf.Tensor, fill: float) -> tf.Tensor:
    """Replaces NaN in numbers of shape ``[batch]`` or ``[batch, width]``; returns float32 of the same shape.

    Integers are never missing: give them to the other functions as they are, since float32 rounds them above 2**24.
    """
    values = tf.cast(values, tf.float32)
    return tf.where(tf.math.is_nan(values), tf.fill(tf.shape(values), tf.constant(fill, tf.float32)), values)


def is_missing(values: tf.Tensor) -> tf.Tensor:
    """Returns 1 if a float, or any in a vector, is NaN or a string is empty, else 0; float32 of shape ``[batch]``."""
    missing = tf.equal(values, "") if values.dtype == tf.string else tf.math.is_nan(tf.cast(values, tf.float32))
    missing = tf.reduce_any(missing, axis=1) if missing.shape.rank == 2 else missing
    return tf.cast(missing, tf.float32)


def z_score(features: dict[str, tf.Tensor], name: str, constants: Constants, *, clip: float | None = 10.0) -> tf.Tensor:
    """Returns a feature's distance from its mean in standard deviations; 0 if it is missing or constant.

    Args:
        features: The raw features.
        name: The numeric feature; a vector has one mean and one deviation for all its numbers.
        constants: Statistics with its mean and standard deviation.
        clip: Maximum absolute value, as a single outlier must not determine a prediction; None for no limit.

    Returns:
        float32 of the feature's shape.
    """
    mean, std_dev, values = constants.mean(name), constants.std_dev(name), features[name]
    # The mean of a constant is the constant, which float32 may have rounded.
    center = mean if std_dev > 0 else tf.cast(tf.cast(mean, values.dtype), tf.float64)
    scores = tf.cast((tf.cast(values, tf.float64) - center) / (std_dev or 1.0), tf.float32)
    scores = tf.where(tf.math.is_nan(scores), tf.zeros_like(scores), scores)
    return scores if clip is None else tf.clip_by_value(scores, -clip, clip)


def vocabulary_ids(values: tf.Tensor, vocabulary: Vocabulary) -> tf.Tensor:
    """Returns ids of strings: 1 for the most frequent value and so on, 0 for an unknown or missing one.

    Args:
        values: Strings of shape ``[batch]``.
        vocabulary: Result of :meth:`airflow_hops.ml.features.constants.Constants.vocabulary`. Its size, which an
            embedding needs, is recorded with the output that these ids become.

    Returns:
        int64 of shape ``[batch]``, from 0 to ``vocabulary.size - 1``.
    """
    if not vocabulary.values:
        ids = tf.zeros_like(values, dtype=tf.int64)
    else:
        table = tf.lookup.StaticHashTable(
            tf.lookup.KeyValueTensorInitializer(
                list(vocabulary.values),
                list(range(1, len(vocabulary.values) + 1)),
                key_dtype=tf.string,
                value_dtype=tf.int64,
            ),
            default_value=0,
        )
        ids = table.lookup(values)
    vocabulary.looked_up.append(ids)
    return ids


def bucketize(values: tf.Tensor, boundaries: Sequence[float]) -> tf.Tensor:
    """Returns the bucket of each number: 0 below the first boundary, ``len(boundaries)`` from the last on.

    Args:
        values: Numbers of shape ``[batch]``; missing numbers get the last bucket, so fill them first.
        boundaries: Boundaries, ascending. Floats are compared in their own precision, integers exactly.

    Returns:
        int64 of shape ``[batch]``.

    Raises:
        BadInput: the boundaries are not ascending numbers.

    Example:
        >>> import tensorflow as tf
        >>> from airflow_hops import bucketize
        >>> bucketize(tf.constant([-1.0, 0.0, 700.0]), [0.0, 500.0]).numpy().tolist()
        [0, 1, 2]
    """
    limits: list[float] = list(boundaries)
    if limits != sorted(limits) or any(map(math.isnan, limits)):
        raise BadInput(f"bucketize(): boundaries is {limits}; expected numbers in ascending order")
    if values.dtype.is_integer:  # a whole number reaches a boundary if it reaches the next whole number
        limits = [math.ceil(max(each, -float(_INT64))) for each in limits if each < _INT64]
    dtype = tf.int64 if values.dtype.is_integer else values.dtype
    return tf.searchsorted(tf.constant(limits, dtype), tf.cast(values, dtype), side="right", out_type=tf.int64)


def one_hot(ids: tf.Tensor, depth: int) -> tf.Tensor:
    """Returns indicator columns of ids: float32 ``[batch, depth]``; an id outside 0 to ``depth - 1`` gives all 0."""
    return tf.one_hot(ids, depth, dtype=tf.float32)


def cyclic(values: tf.Tensor, period: float) -> tf.Tensor:
    """Returns the sine and cosine of a periodic quantity, such as the minute of a day.

    Args:
        values: Numbers of shape ``[batch]``.
        period: Period of the quantity.

    Returns:
        float32 of shape ``[batch, 2]``; zeros if the value is missing.
    """
    angle: object = tf.math.floormod(tf.cast(values, tf.float64), period) * (2 * math.pi / period)
    circle = tf.cast(tf.stack([tf.sin(angle), tf.cos(angle)], axis=1), tf.float32)
    return tf.where(tf.math.is_nan(circle), tf.zeros_like(circle), circle)


def columns(parts: Sequence[tf.Tensor]) -> tf.Tensor:
    """Concatenates tensors of shape ``[batch]`` and ``[batch, width]``: float32 of shape ``[batch, widths]``."""
    wide = [part if part.shape.rank == 2 else part[:, tf.newaxis] for part in parts]
    return tf.concat([tf.cast(part, tf.float32) for part in wide], axis=1)
