"""Images that are small on disk and large in memory, of more than 8 bits a channel, or taken with a turned camera."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps

from airflow_hops.core.serving_api.encoded_images import largest_image
from airflow_hops.extensions.images.core.images import MAX_PIXELS, ImageSpec
from airflow_hops.extensions.images.ml.features import decode_pixel_batch, decode_pixels

SPEC = ImageSpec(8, 12, 3, fit="stretch")


def saved(image: Image.Image, kind: str, **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def wide(kind: str) -> bytes:
    """A file whose header tells 23,000 by 23,000 pixels."""
    small = saved(Image.new("RGB", (8, 8)), kind)
    if kind == "PNG":
        header = small[12:16] + struct.pack(">II", 23_000, 23_000) + small[24:29]
        return small[:12] + header + struct.pack(">I", zlib.crc32(header)) + small[33:]
    if kind == "GIF":
        return small[:6] + struct.pack("<HH", 23_000, 23_000) + small[10:]
    position = next(position for position in range(len(small)) if small[position : position + 2] == b"\xff\xc0")
    return small[: position + 5] + struct.pack(">HH", 23_000, 23_000) + small[position + 9 :]


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF"])
def test_too_many_pixels_are_refused_undecoded(kind: str) -> None:
    import tensorflow as tf

    graph = tf.function(lambda images: decode_pixel_batch(images, SPEC), autograph=False)
    with pytest.raises(tf.errors.InvalidArgumentError, match=rf"more than {MAX_PIXELS} pixels, the limit"):
        graph(tf.constant([wide(kind)]))
    assert largest_image(b"\x0a\x05" + wide(kind)) == 23_000**2


def test_all_frames_of_a_gif_count() -> None:
    frames = [Image.new("L", (30, 20), number) for number in range(5)]
    gif = saved(frames[0], "GIF", save_all=True, append_images=frames[1:], optimize=False)
    assert largest_image(gif) == 5 * 600
    assert largest_image(gif[:100]) in range(600, 5 * 600)


@pytest.mark.parametrize("data", [b"", b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF89a", b"text", b"\xff\xd8\xff" * 99])
def test_data_without_image_header_is_refused(data: bytes) -> None:
    import tensorflow as tf

    assert largest_image(data) == 0
    with pytest.raises(tf.errors.InvalidArgumentError):
        decode_pixels(tf.constant(data), SPEC)


def test_lossy_bit_depth_is_refused() -> None:
    import tensorflow as tf

    deep = tf.io.encode_png(tf.constant(np.arange(96).reshape(8, 12, 1) * 600, tf.uint16))
    with pytest.raises(tf.errors.InvalidArgumentError, match="16 bits a channel, of which 8 would be lost"):
        decode_pixels(deep, SPEC)


@pytest.mark.parametrize("turn", range(1, 10))
@pytest.mark.parametrize("little", [True, False])
def test_jpeg_is_rotated_by_its_exif(turn: int, little: bool) -> None:
    import tensorflow as tf

    pixels = np.random.default_rng(turn).integers(0, 256, (8, 12, 3)).astype(np.uint8)
    # Another tag comes first.
    order = "<" if little else ">"
    entries = struct.pack(order + "H", 2) + struct.pack(order + "HHIHH", 271, 3, 1, 7, 0)
    entries += struct.pack(order + "HHIHH", 274, 3, 1, turn, 0) + bytes(4)
    exif = b"Exif\0\0" + (b"II*\0" if little else b"MM\0*") + struct.pack(order + "I", 8) + entries
    encoded = saved(Image.fromarray(pixels), "JPEG", quality=95, exif=exif)
    with Image.open(io.BytesIO(encoded)) as image:
        assert image.getexif().get(274) == turn
        size = ImageOps.exif_transpose(image).size
    as_it_is = tf.io.decode_jpeg(encoded).numpy()
    expected = {
        2: as_it_is[:, ::-1], 3: as_it_is[::-1, ::-1], 4: as_it_is[::-1], 5: as_it_is.transpose(1, 0, 2),
        6: np.rot90(as_it_is, -1), 7: np.rot90(as_it_is, 2).transpose(1, 0, 2), 8: np.rot90(as_it_is),
    }.get(turn, as_it_is)  # fmt: skip
    assert expected.shape[:2] == (size[1], size[0])
    decoded = decode_pixels(tf.constant(encoded), ImageSpec(*expected.shape)).numpy()
    assert np.array_equal(decoded, expected)
