"""The ``tf.data`` pipeline of a pass: windows are read ahead in the background, and batches are slices of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from airflow_hops.hops.images import ImageSpec, decode_images
from airflow_hops.hops.reader.columns import ColumnType
from airflow_hops.hops.reader.plan import PassPlan

_PREFETCHED_BATCHES = 8


def batches(
    plan: PassPlan,
    kinds: Mapping[str, ColumnType],
    label: str | None,
    begin: Callable[[], tuple[Any, Any]],
    load: Callable[[Any, Any], list[Any]],
    rows_given: tf.Variable,
    *,
    images: Mapping[str, ImageSpec],
    threads: int,
) -> tf.data.Dataset:
    """The batches of a pass.

    Args:
        plan: Windows and batches.
        kinds: What the columns hold.
        label: The column that is the label, or None.
        begin: Called at the beginning of each pass; returns its epoch and the step to begin with, int64.
        load: Called with epoch and window; returns the window's arrays, in the order of :attr:`ColumnType.tensors`.
        rows_given: int64; counts the rows that have been handed out in this pass.
        images: Columns of encoded images, and what is made of them.
        threads: How many batches of them are decoded at once.
    """
    bounds = tf.constant(plan.bounds)
    per_window = plan.steps_per_window
    specs = [spec for kind in kinds.values() for spec in kind.tensors]

    def window_tensors(epoch: Any, window: Any) -> tuple[Any, ...]:
        tensors = tf.numpy_function(load, [epoch, window], [spec.dtype for spec in specs])
        for tensor, spec in zip(tensors, specs, strict=True):
            tensor.set_shape(spec.shape)
        return window, *tensors

    def one_pass(_: Any) -> tf.data.Dataset:
        epoch, first = tf.numpy_function(begin, [], [tf.int64, tf.int64])
        epoch.set_shape([])
        first.set_shape([])
        rows_given.assign(bounds[first])

        def batches_of(window: Any, *tensors: Any) -> tf.data.Dataset:
            base = bounds[window * per_window]
            last = tf.minimum((window + 1) * per_window, plan.steps)
            steps = tf.data.Dataset.range(tf.maximum(first, window * per_window), last)
            return steps.map(lambda step: _batch(kinds, label, tensors, bounds[step] - base, bounds[step + 1] - base))

        windows = tf.data.Dataset.range(first // per_window, plan.windows)
        return windows.map(lambda window: window_tensors(epoch, window)).prefetch(1).flat_map(batches_of)

    def count(*element: Any) -> Any:
        leaf = element[1] if label is not None else next(iter(element[0].values()))
        rows = leaf.nrows(tf.int64) if isinstance(leaf, tf.RaggedTensor) else tf.shape(leaf, tf.int64)[0]
        rows_given.assign_add(rows)
        return element if label is not None else element[0]

    def decode(*element: Any) -> Any:
        decoded = {name: decode_images(element[0][name], spec) for name, spec in images.items()}
        features = {**element[0], **decoded}
        return (features, element[1]) if label is not None else features

    unconverted = tf.autograph.experimental.do_not_convert
    dataset = tf.data.Dataset.range(1).flat_map(unconverted(one_pass))
    if images:
        dataset = dataset.map(unconverted(decode), num_parallel_calls=threads, deterministic=True)
    dataset = dataset.prefetch(_PREFETCHED_BATCHES)
    # Counted behind the prefetch: what has been handed out, not what is ready.
    return dataset.map(unconverted(count)).with_options(_options(threads if images else 1))


def _batch(kinds: Mapping[str, ColumnType], label: str | None, tensors: Sequence[Any], begin: Any, end: Any) -> Any:
    left = list(tensors)
    columns = {name: _rows(kind, [left.pop(0) for _ in kind.tensors], begin, end) for name, kind in kinds.items()}
    if label is None:
        return columns
    labels = columns.pop(label)
    return columns, labels


def _rows(kind: ColumnType, tensors: Sequence[Any], begin: Any, end: Any) -> Any:
    first, *rest = tensors
    if kind.is_coded:
        return tf.gather(rest[0], first[begin:end])
    if not kind.is_ragged:
        return first[begin:end]
    splits = rest[0][begin : end + 1]
    return tf.RaggedTensor.from_row_splits(first[splits[0] : splits[-1]], splits - splits[0], validate=False)


def _options(threads: int) -> tf.data.Options:
    options = tf.data.Options()
    options.deterministic = True
    options.threading.private_threadpool_size = threads
    options.autotune.enabled = False
    options.experimental_optimization.inject_prefetch = False
    return options
