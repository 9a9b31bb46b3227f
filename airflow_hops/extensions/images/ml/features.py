"""Converts images to a model's input, for Spark's executors, the training's reader and the served graph.

An encoded image becomes pixels (:func:`decode_pixels`: decoded, resized, cropped, rounded to uint8), and pixels become
numbers (:func:`normalise`). Executors store the pixels, encoded losslessly as PNG, so that the reader, which decodes
them, and the served model, which takes a client's original image, compute identical numbers.
"""

from __future__ import annotations

from typing import Any

from airflow_hops.extensions.images.core.images import MAX_PIXELS, ImageSpec


def decode_image(encoded: object, spec: ImageSpec) -> object:
    """Converts an encoded image to numbers: :func:`normalise` of :func:`decode_pixels`.

    Args:
        encoded: String tensor of shape ``[]``: PNG, JPEG, BMP or GIF (its first frame).
        spec: The conversion.

    Returns:
        float32 of shape ``[height, width, channels]``.
    """
    return normalise(decode_pixels(encoded, spec), spec)


def decode_images(encoded: object, spec: ImageSpec) -> object:
    """Decodes images of shape ``[batch]`` to numbers, float32 of shape ``[batch, height, width, channels]``."""
    return normalise(decode_pixel_batch(encoded, spec), spec)


def decode_pixels(encoded: object, spec: ImageSpec) -> object:
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


def decode_pixel_batch(encoded: object, spec: ImageSpec) -> object:
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


def fit_pixels(pixels: object, spec: ImageSpec) -> object:
    """Resizes and crops pixels, uint8 of any height and width, to the spec's shape.

    A triangular filter (anti-aliasing) reduces images.
    """
    import tensorflow as tf

    height, width = tf.shape(pixels)[0], tf.shape(pixels)[1]
    as_it_is = tf.logical_and(tf.equal(height, spec.height), tf.equal(width, spec.width))
    fitted = tf.cond(as_it_is, lambda: pixels, lambda: _fit(pixels, height, width, spec))
    return tf.ensure_shape(fitted, spec.shape)


def normalise(pixels: object, spec: ImageSpec) -> object:
    """Converts pixels, uint8 of shape ``[..., channels]``, to float32: (pixel / 255 - mean) / scale, by channel."""
    import tensorflow as tf

    factor = [1.0 / (255.0 * scale) for scale in spec.scale]
    offset = [-mean / scale for mean, scale in zip(spec.mean, spec.scale, strict=True)]
    return tf.cast(pixels, tf.float32) * tf.constant(factor, tf.float32) + tf.constant(offset, tf.float32)


def _fit(pixels: Any, height: Any, width: Any, spec: ImageSpec) -> object:
    import tensorflow as tf

    if spec.fit == "stretch":
        return _resize(pixels, [spec.height, spec.width])
    if spec.fit == "crop":
        return _crop(pixels, height, width, spec)
    ratio = tf.maximum(spec.height / height, spec.width / width)  # float64
    target_height = tf.maximum(tf.cast(tf.round(tf.cast(height, tf.float64) * ratio), tf.int32), spec.height)
    target_width = tf.maximum(tf.cast(tf.round(tf.cast(width, tf.float64) * ratio), tf.int32), spec.width)
    return _crop(_resize(pixels, [target_height, target_width]), target_height, target_width, spec)


def _resize(pixels: object, size: object) -> object:
    import tensorflow as tf

    resized = tf.image.resize(pixels, size, method="bilinear", antialias=True)
    return tf.cast(tf.clip_by_value(tf.round(resized), 0.0, 255.0), tf.uint8)


def _crop(pixels: Any, height: Any, width: Any, spec: ImageSpec) -> object:
    import tensorflow as tf

    large_enough = tf.logical_and(height >= spec.height, width >= spec.width)
    message = f"the image is smaller than the crop of {spec.height} by {spec.width} pixels"
    with tf.control_dependencies([tf.debugging.Assert(large_enough, [message, height, width])]):
        top, left = (height - spec.height) // 2, (width - spec.width) // 2
        return tf.slice(pixels, [top, left, 0], [spec.height, spec.width, spec.channels])


_HEAD_BYTES = 1 << 16
"""Number of bytes at the start of a JPEG that must contain the start of its Exif block."""
_IFD_BYTES, _MOST_ENTRIES = 4096, 150


def check_header(encoded: object) -> object:
    """Returns an operation that fails if an image is too large to decode, or has more than 8 bits per channel."""
    import tensorflow as tf

    head = _head(encoded, 32)
    is_png, is_gif = _begins(head, b"\x89PNG"), _begins(head, b"GIF8")
    of_jpeg = tf.cond(
        is_jpeg(head),
        lambda: tf.cast(tf.image.extract_jpeg_shape(encoded)[:2], tf.int64),
        lambda: tf.zeros([2], tf.int64),
    )
    of_png = tf.reduce_sum(tf.reshape(head[16:24], [2, 4]) * [1 << 24, 1 << 16, 1 << 8, 1], axis=1)
    of_gif = tf.reduce_sum(tf.reshape(head[6:10], [2, 2]) * [1, 1 << 8], axis=1)
    sides = tf.where(is_png, of_png, tf.where(is_gif, of_gif, of_jpeg))
    # As float64, since the product of two 32-bit sides may not fit int64.
    is_small = tf.reduce_prod(tf.cast(sides, tf.float64)) <= MAX_PIXELS
    is_deep = tf.logical_and(is_png, head[24] > 8)
    sizes = tf.debugging.Assert(is_small, [f"the image has more than {MAX_PIXELS} pixels, the limit; its sides", sides])
    depth = tf.debugging.Assert(
        tf.logical_not(is_deep), ["the image has 16 bits a channel, of which 8 would be lost; scale it to 8 bits"]
    )
    return tf.group(sizes, depth)


def upright(pixels: object, encoded: object) -> object:
    """Rotates and flips pixels, ``[height, width, channels]``, by the Exif orientation of their JPEG.

    Source: Exif 2.32, tag 274 of IFD0.
    """
    import tensorflow as tf

    turn = tf.cond(is_jpeg(_head(encoded, 32)), lambda: _orientation(encoded), lambda: tf.constant(1, tf.int64))
    pixels = tf.cond(turn >= 5, lambda: tf.transpose(pixels, [1, 0, 2]), lambda: pixels)
    for axis, turns in ((0, (3, 4, 7, 8)), (1, (2, 3, 6, 7))):
        is_flipped = tf.reduce_any(tf.equal(turn, tf.constant(turns, tf.int64)))
        pixels = tf.cond(is_flipped, lambda p=pixels, a=axis: tf.reverse(p, [a]), lambda p=pixels: p)
    return pixels


def is_jpeg(head: object) -> object:
    """Returns whether an image's first bytes are those of a JPEG."""
    return _begins(head, b"\xff\xd8\xff")


def _orientation(encoded: Any) -> object:
    """Returns the Exif orientation from 1 (unchanged) to 8; 1 if there is none."""
    import tensorflow as tf

    head = _head(encoded, _HEAD_BYTES)
    marks = {0: 0xFF, 1: 0xE1, **dict(enumerate(b"Exif\0\0", 4))}
    last = _HEAD_BYTES - len(marks) - 2
    is_exif = tf.reduce_all(
        [tf.equal(head[position : position + last], mark) for position, mark in marks.items()], axis=0
    )
    start = tf.argmax(tf.cast(is_exif, tf.int32)) + 10
    block = tf.pad(head, [[0, _IFD_BYTES]])[start : start + _IFD_BYTES]
    is_little = tf.equal(block[0], ord("I"))

    def number(position: Any) -> Any:
        first, second = tf.gather(block, position), tf.gather(block, position + 1)
        return tf.where(is_little, first + 256 * second, 256 * first + second)

    position = tf.minimum(tf.where(is_little, number(4), number(6)), _IFD_BYTES // 2)
    entries = position + 2 + 12 * tf.range(_MOST_ENTRIES, dtype=tf.int64)
    is_there = tf.range(_MOST_ENTRIES, dtype=tf.int64) < number(position)
    is_turn = tf.reduce_any(is_exif) & is_there & tf.equal(number(entries), 274)
    turn = tf.reduce_max(tf.where(is_turn, number(entries + 8), 1))
    return tf.where(turn <= 8, turn, 1)


def _head(encoded: object, size: int) -> Any:
    """Returns the first bytes as numbers; short images are padded with zeros."""
    import tensorflow as tf

    head = tf.cast(tf.io.decode_raw(tf.strings.substr(encoded, 0, size), tf.uint8), tf.int64)
    return tf.ensure_shape(tf.pad(head, [[0, size - tf.size(head)]]), [size])


def _begins(head: Any, mark: bytes) -> object:
    import tensorflow as tf

    return tf.reduce_all(tf.equal(head[: len(mark)], tf.constant(list(mark), tf.int64)))
