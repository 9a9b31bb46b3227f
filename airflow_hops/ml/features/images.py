"""Converts images to a model's input, for Spark's executors, the training's reader and the served graph.

An encoded image becomes pixels (:func:`decode_pixels`: decoded, resized, cropped, rounded to uint8), and pixels become
numbers (:func:`normalise`). Executors store the pixels, encoded losslessly as PNG, so that the reader, which decodes
them, and the served model, which takes a client's original image, compute identical numbers.
"""

from __future__ import annotations

from typing import Any

from airflow_hops.core.contract.images import ImageSpec
from airflow_hops.ml.features.image_headers import check_header, upright


def decode_image(encoded: Any, spec: ImageSpec) -> Any:
    """Converts an encoded image to numbers: :func:`normalise` of :func:`decode_pixels`.

    Args:
        encoded: String tensor of shape ``[]``: PNG, JPEG, BMP or GIF (its first frame).
        spec: The conversion.

    Returns:
        float32 of shape ``[height, width, channels]``.
    """
    return normalise(decode_pixels(encoded, spec), spec)


def decode_images(encoded: Any, spec: ImageSpec) -> Any:
    """Decodes images of shape ``[batch]`` to numbers, float32 of shape ``[batch, height, width, channels]``."""
    return normalise(decode_pixel_batch(encoded, spec), spec)


def decode_pixels(encoded: Any, spec: ImageSpec) -> Any:
    """Decodes an image to pixels, uint8 of shape ``[height, width, channels]``, turned according to a JPEG's Exif.

    Decoding is idempotent: losslessly encoded pixels decode to themselves.

    Raises:
        tf.errors.InvalidArgumentError: when it runs: this is not an image, it has too many pixels or bits per channel
            or, if ``fit`` is ``crop``, it is too small.
    """
    import tensorflow as tf

    with tf.control_dependencies([check_header(encoded)]):
        encoded = tf.identity(encoded)
    pixels = tf.io.decode_image(encoded, channels=spec.channels, dtype=tf.uint8, expand_animations=False)
    pixels.set_shape([None, None, spec.channels])
    return fit_pixels(upright(pixels, encoded), spec)


def decode_pixel_batch(encoded: Any, spec: ImageSpec) -> Any:
    """Decodes images of shape ``[batch]`` to pixels, uint8 of shape ``[batch, height, width, channels]``.

    One image is decoded at a time, so the additional memory does not grow with the batch.
    """
    import tensorflow as tf

    return tf.map_fn(
        lambda one: decode_pixels(one, spec),
        encoded,
        parallel_iterations=1,
        fn_output_signature=tf.TensorSpec(spec.shape, tf.uint8),
    )


def fit_pixels(pixels: Any, spec: ImageSpec) -> Any:
    """Resizes and crops pixels, uint8 of any height and width, to the spec's shape.

    A triangular filter (anti-aliasing) reduces images.
    """
    import tensorflow as tf

    height, width = tf.shape(pixels)[0], tf.shape(pixels)[1]
    as_it_is = tf.logical_and(tf.equal(height, spec.height), tf.equal(width, spec.width))
    fitted = tf.cond(as_it_is, lambda: pixels, lambda: _fit(pixels, height, width, spec))
    return tf.ensure_shape(fitted, spec.shape)


def normalise(pixels: Any, spec: ImageSpec) -> Any:
    """Converts pixels, uint8 of shape ``[..., channels]``, to float32: (pixel / 255 - mean) / scale, by channel."""
    import tensorflow as tf

    factor = [1.0 / (255.0 * scale) for scale in spec.scale]
    offset = [-mean / scale for mean, scale in zip(spec.mean, spec.scale, strict=True)]
    return tf.cast(pixels, tf.float32) * tf.constant(factor, tf.float32) + tf.constant(offset, tf.float32)


def _fit(pixels: Any, height: Any, width: Any, spec: ImageSpec) -> Any:
    import tensorflow as tf

    if spec.fit == "stretch":
        return _resize(pixels, [spec.height, spec.width])
    if spec.fit == "crop":
        return _crop(pixels, height, width, spec)
    ratio = tf.maximum(spec.height / height, spec.width / width)  # float64
    target_height = tf.maximum(tf.cast(tf.round(tf.cast(height, tf.float64) * ratio), tf.int32), spec.height)
    target_width = tf.maximum(tf.cast(tf.round(tf.cast(width, tf.float64) * ratio), tf.int32), spec.width)
    return _crop(_resize(pixels, [target_height, target_width]), target_height, target_width, spec)


def _resize(pixels: Any, size: Any) -> Any:
    import tensorflow as tf

    resized = tf.image.resize(pixels, size, method="bilinear", antialias=True)
    return tf.cast(tf.clip_by_value(tf.round(resized), 0.0, 255.0), tf.uint8)


def _crop(pixels: Any, height: Any, width: Any, spec: ImageSpec) -> Any:
    import tensorflow as tf

    large_enough = tf.logical_and(height >= spec.height, width >= spec.width)
    message = f"the image is smaller than the crop of {spec.height} by {spec.width} pixels"
    with tf.control_dependencies([tf.debugging.Assert(large_enough, [message, height, width])]):
        top, left = (height - spec.height) // 2, (width - spec.width) // 2
        return tf.slice(pixels, [top, left, 0], [spec.height, spec.width, spec.channels])
