"""Headers of encoded images, read in a graph: limits checked before decoding, and orientation."""

from __future__ import annotations

from typing import Any

from airflow_hops.core.contract.images import MAX_PIXELS

_HEAD_BYTES = 1 << 16
"""Bytes at the start of a JPEG in which its Exif block must begin."""
_IFD_BYTES, _MOST_ENTRIES = 4096, 150


def check_header(encoded: Any) -> Any:
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


def upright(pixels: Any, encoded: Any) -> Any:
    """Turns pixels, ``[height, width, channels]``, by the Exif orientation of the JPEG from which they come.

    Source: Exif 2.32, tag 274 of IFD0.
    """
    import tensorflow as tf

    turn = tf.cond(is_jpeg(_head(encoded, 32)), lambda: _orientation(encoded), lambda: tf.constant(1, tf.int64))
    pixels = tf.cond(turn >= 5, lambda: tf.transpose(pixels, [1, 0, 2]), lambda: pixels)
    for axis, turns in ((0, (3, 4, 7, 8)), (1, (2, 3, 6, 7))):
        is_flipped = tf.reduce_any(tf.equal(turn, tf.constant(turns, tf.int64)))
        pixels = tf.cond(is_flipped, lambda p=pixels, a=axis: tf.reverse(p, [a]), lambda p=pixels: p)
    return pixels


def is_jpeg(head: Any) -> Any:
    """Returns whether an image's first bytes are those of a JPEG."""
    return _begins(head, b"\xff\xd8\xff")


def _orientation(encoded: Any) -> Any:
    """Returns the Exif orientation from 1 (unchanged) to 8; 1 if there is none."""
    import tensorflow as tf

    head = _head(encoded, _HEAD_BYTES)
    marks = {0: 0xFF, 1: 0xE1, **dict(enumerate(b"Exif\0\0", 4))}
    last = _HEAD_BYTES - len(marks) - 2
    is_exif = tf.reduce_all([tf.equal(head[at : at + last], mark) for at, mark in marks.items()], axis=0)
    start = tf.argmax(tf.cast(is_exif, tf.int32)) + 10
    block = tf.pad(head, [[0, _IFD_BYTES]])[start : start + _IFD_BYTES]
    is_little = tf.equal(block[0], ord("I"))

    def number(at: Any) -> Any:
        first, second = tf.gather(block, at), tf.gather(block, at + 1)
        return tf.where(is_little, first + 256 * second, 256 * first + second)

    at = tf.minimum(tf.where(is_little, number(4), number(6)), _IFD_BYTES // 2)
    entries = at + 2 + 12 * tf.range(_MOST_ENTRIES, dtype=tf.int64)
    is_there = tf.range(_MOST_ENTRIES, dtype=tf.int64) < number(at)
    is_turn = tf.reduce_any(is_exif) & is_there & tf.equal(number(entries), 274)
    turn = tf.reduce_max(tf.where(is_turn, number(entries + 8), 1))
    return tf.where(turn <= 8, turn, 1)


def _head(encoded: Any, size: int) -> Any:
    """Returns the first bytes as numbers; short images are padded with zeros."""
    import tensorflow as tf

    head = tf.cast(tf.io.decode_raw(tf.strings.substr(encoded, 0, size), tf.uint8), tf.int64)
    return tf.ensure_shape(tf.pad(head, [[0, size - tf.size(head)]]), [size])


def _begins(head: Any, mark: bytes) -> Any:
    import tensorflow as tf

    return tf.reduce_all(tf.equal(head[: len(mark)], tf.constant(list(mark), tf.int64)))
