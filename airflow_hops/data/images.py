"""One definition of what a model sees of an image, for Spark's executors, the training's reader and the served graph.

An encoded image becomes pixels (:func:`decode_pixels`: decoded, resized, cropped, rounded to uint8), and pixels become
numbers (:func:`normalise`). What executors keep are the pixels, encoded as PNG without loss: the reader, which decodes
them, and the served model, which takes a client's image as it is, come to the very same numbers.
"""

from __future__ import annotations

from typing import Any

from airflow_hops.contract.images import ImageSpec
from airflow_hops.processes.tensorflow_graphs import import_tensorflow


def decode_image(encoded: Any, spec: ImageSpec) -> Any:
    """An encoded image as numbers: :func:`normalise` of :func:`decode_pixels`.

    Args:
        encoded: String tensor of shape ``[]``: PNG, JPEG, BMP or GIF (its first frame).
        spec: What to make of it.

    Returns:
        float32 of shape ``[height, width, channels]``.
    """
    return normalise(decode_pixels(encoded, spec), spec)


def decode_images(encoded: Any, spec: ImageSpec) -> Any:
    """Encoded images of shape ``[batch]`` as numbers, float32 of shape ``[batch, height, width, channels]``."""
    return normalise(decode_pixel_batch(encoded, spec), spec)


def decode_pixels(encoded: Any, spec: ImageSpec) -> Any:
    """An encoded image as pixels, uint8 of shape ``[height, width, channels]``.

    It is its own fixed point: pixels that are encoded without loss decode to themselves.

    Args:
        encoded: String tensor of shape ``[]``.
        spec: What to make of it.

    Raises:
        tf.errors.InvalidArgumentError: when it runs: this is no image, or, where ``fit`` is ``crop``, a smaller one.
    """
    tf = import_tensorflow()
    pixels = tf.io.decode_image(encoded, channels=spec.channels, dtype=tf.uint8, expand_animations=False)
    pixels.set_shape([None, None, spec.channels])
    return fit_pixels(pixels, spec)


def decode_pixel_batch(encoded: Any, spec: ImageSpec) -> Any:
    """Encoded images of shape ``[batch]`` as pixels, uint8 of shape ``[batch, height, width, channels]``.

    One image is decoded at a time: what is needed beyond the result does not grow with the batch.
    """
    tf = import_tensorflow()
    return tf.map_fn(
        lambda one: decode_pixels(one, spec),
        encoded,
        parallel_iterations=1,
        fn_output_signature=tf.TensorSpec(spec.shape, tf.uint8),
    )


def fit_pixels(pixels: Any, spec: ImageSpec) -> Any:
    """Resizes and crops pixels to the spec's height and width.

    Sizes are reduced with a triangular filter over all pixels that fall into one (anti-aliasing).

    Args:
        pixels: uint8 of shape ``[height, width, channels]``, of any height and width.
        spec: What to make of it.

    Returns:
        uint8 of the spec's shape.
    """
    tf = import_tensorflow()
    height, width = tf.shape(pixels)[0], tf.shape(pixels)[1]
    as_it_is = tf.logical_and(tf.equal(height, spec.height), tf.equal(width, spec.width))
    fitted = tf.cond(as_it_is, lambda: pixels, lambda: _fit(pixels, height, width, spec))
    return tf.ensure_shape(fitted, spec.shape)


def normalise(pixels: Any, spec: ImageSpec) -> Any:
    """Pixels as numbers: divided by 255, less the mean, divided by the scale, all by channel.

    Args:
        pixels: uint8 of shape ``[..., channels]``.
        spec: Says by what.

    Returns:
        float32 of the same shape.
    """
    tf = import_tensorflow()
    factor = [1.0 / (255.0 * scale) for scale in spec.scale]
    offset = [-mean / scale for mean, scale in zip(spec.mean, spec.scale, strict=True)]
    return tf.cast(pixels, tf.float32) * tf.constant(factor, tf.float32) + tf.constant(offset, tf.float32)


def _fit(pixels: Any, height: Any, width: Any, spec: ImageSpec) -> Any:
    tf = import_tensorflow()
    if spec.fit == "stretch":
        return _resize(pixels, [spec.height, spec.width])
    if spec.fit == "crop":
        return _crop(pixels, height, width, spec)
    ratio = tf.maximum(spec.height / height, spec.width / width)  # float64
    target_height = tf.maximum(tf.cast(tf.round(tf.cast(height, tf.float64) * ratio), tf.int32), spec.height)
    target_width = tf.maximum(tf.cast(tf.round(tf.cast(width, tf.float64) * ratio), tf.int32), spec.width)
    return _crop(_resize(pixels, [target_height, target_width]), target_height, target_width, spec)


def _resize(pixels: Any, size: Any) -> Any:
    tf = import_tensorflow()
    resized = tf.image.resize(pixels, size, method="bilinear", antialias=True)
    return tf.cast(tf.clip_by_value(tf.round(resized), 0.0, 255.0), tf.uint8)


def _crop(pixels: Any, height: Any, width: Any, spec: ImageSpec) -> Any:
    tf = import_tensorflow()
    large_enough = tf.logical_and(height >= spec.height, width >= spec.width)
    message = f"the image is smaller than the crop of {spec.height} by {spec.width} pixels"
    with tf.control_dependencies([tf.debugging.Assert(large_enough, [message, height, width])]):
        top, left = (height - spec.height) // 2, (width - spec.width) // 2
        return tf.slice(pixels, [top, left, 0], [spec.height, spec.width, spec.channels])
