"""Building blocks of a preprocessing function: TensorFlow operations that treat missing values as the contract says.

A raw feature is a dense tensor of shape ``[batch]``, of vectors ``[batch, width]``: a missing float is NaN, a missing
vector NaN throughout, a missing string empty. Every function here works on each row by itself, so that training and
serving see the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from airflow_hops.data.constants import Constants, Vocabulary


def fill_missing(values: tf.Tensor, fill: float) -> tf.Tensor:
    """Replaces NaN.

    Args:
        values: Numbers of shape ``[batch]`` or ``[batch, width]``.
        fill: What stands for a missing value.

    Returns:
        float32 of the same shape.
    """
    values = tf.cast(values, tf.float32)
    return tf.where(tf.math.is_nan(values), tf.fill(tf.shape(values), tf.constant(fill, tf.float32)), values)


def is_missing(values: tf.Tensor) -> tf.Tensor:
    """1 where a float, or any of a vector's, is NaN or a string is empty, else 0; float32 of shape ``[batch]``."""
    missing = tf.equal(values, "") if values.dtype == tf.string else tf.math.is_nan(tf.cast(values, tf.float32))
    missing = tf.reduce_any(missing, axis=1) if missing.shape.rank == 2 else missing
    return tf.cast(missing, tf.float32)


def z_score(features: dict[str, tf.Tensor], name: str, constants: Constants, *, clip: float | None = 10.0) -> tf.Tensor:
    """A feature's distance from its mean in standard deviations; 0 where it is missing or constant.

    Args:
        features: The raw features.
        name: The numeric feature; a vector has one mean and one deviation for all its numbers.
        constants: Its mean and standard deviation come from here.
        clip: Greatest absolute value; None for no limit. (One absurd reading must not decide a prediction.)

    Returns:
        float32 of the feature's shape.
    """
    mean, std_dev = constants.mean(name), constants.std_dev(name)
    scores = (fill_missing(features[name], mean) - mean) / (std_dev if std_dev > 0 else 1.0)
    return scores if clip is None else tf.clip_by_value(scores, -clip, clip)


def vocabulary_ids(values: tf.Tensor, vocabulary: Vocabulary) -> tf.Tensor:
    """Ids of strings: 1 for the most frequent value and so on, 0 for an unknown or missing one.

    Args:
        values: Strings of shape ``[batch]``.
        vocabulary: From :meth:`airflow_hops.data.constants.Constants.vocabulary`. Its size, which an embedding
            needs, is recorded with the output that these ids become.

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
    """The bucket of each number: 0 below the first boundary, ``len(boundaries)`` from the last on.

    Args:
        values: Numbers of shape ``[batch]``; a missing one comes to the last bucket, so fill it first.
        boundaries: Ascending.

    Returns:
        int64 of shape ``[batch]``.
    """
    return tf.searchsorted(
        tf.constant(list(boundaries), tf.float32), tf.cast(values, tf.float32), side="right", out_type=tf.int64
    )


def one_hot(ids: tf.Tensor, depth: int) -> tf.Tensor:
    """Ids as indicator columns: float32 of shape ``[batch, depth]``; an id outside of 0 to ``depth - 1`` is all 0."""
    return tf.one_hot(ids, depth, dtype=tf.float32)


def cyclic(values: tf.Tensor, period: float) -> tf.Tensor:
    """A point on a circle for a quantity that comes round (the minute of a day): its sine and cosine.

    Args:
        values: Numbers of shape ``[batch]``.
        period: After how much the quantity is the same again.

    Returns:
        float32 of shape ``[batch, 2]``; zeros where the value is missing.
    """
    angle: Any = tf.cast(values, tf.float32) * (2 * 3.141592653589793 / period)
    circle = tf.stack([tf.sin(angle), tf.cos(angle)], axis=1)
    return tf.where(tf.math.is_nan(circle), tf.zeros_like(circle), circle)


def columns(parts: Sequence[tf.Tensor]) -> tf.Tensor:
    """Puts tensors of shape ``[batch]`` and ``[batch, width]`` side by side: float32 of shape ``[batch, widths]``."""
    wide = [part if part.shape.rank == 2 else part[:, tf.newaxis] for part in parts]
    return tf.concat([tf.cast(part, tf.float32) for part in wide], axis=1)
