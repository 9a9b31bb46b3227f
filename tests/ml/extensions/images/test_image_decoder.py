"""Images of examples, as trainings decode them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from airflow_hops.core.errors import BadInput, HopsError
from airflow_hops.extensions.images.core.images import ImageSpec
from airflow_hops.extensions.images.ml.decoder import image_output
from airflow_hops.ml.features.column_decoders import column_decoder
from airflow_hops.ml.features.feature_specs import Encoding
from airflow_hops.ml.training.reader import open_split

MODES = {"memory": {}, "streamed": {"memory_bytes": 0, "buffer_bytes": 600}}


def test_decoder_takes_each_row_by_itself() -> None:
    options = {"height": 4, "width": 5, "channels": 1, "mean": [0.5], "fit": "stretch"}
    graph = tf.function(column_decoder(Encoding("image", (4, 5, 1), options)).decode, autograph=False)
    values = [tf.io.encode_png(np.full((8, 5, 1), number, "uint8")).numpy() for number in range(3)]
    together = graph(tf.constant(values))
    assert (together.dtype, together.shape) == (tf.float32, (3, 4, 5, 1))
    for row, value in enumerate(values):
        assert (graph(tf.constant([value]))[0].numpy() == together[row].numpy()).all()


def test_unknown_decoder_and_options_are_refused() -> None:
    with pytest.raises(BadInput, match=r"column_decoders is 'imge', expected one of image"):
        column_decoder(Encoding("imge", (4, 5, 1)))
    with pytest.raises(BadInput):
        column_decoder(Encoding("image", (4, 5, 1), {"height": 4, "width": 5, "channels": 1, "no such option": 1}))


@pytest.mark.slow
def test_images_are_decoded_and_damaged_ones_are_named(tmp_path: Path) -> None:
    encoded = [tf.io.encode_png(np.full((4, 5, 1), number, "uint8")).numpy() for number in range(20)]
    specs = {"image": image_output(ImageSpec(4, 5, 1))}
    folder = tmp_path

    def write(images: Sequence[bytes]) -> None:
        table = pa.table({"image": pa.array(images, pa.binary()), "y": np.arange(len(images))})
        pq.write_table(table, folder / "part-0.parquet", row_group_size=6)

    write(encoded)
    for settings in MODES.values():
        dataset = open_split(folder, specs, label="y", threads=2, **settings).dataset(7, shuffle_seed=1)
        pairs = [
            [round(float(image[0, 0, 0]) * 255), int(y)]
            for features, ys in dataset
            for image, y in zip(features["image"].numpy(), ys.numpy(), strict=True)
        ]
        assert sorted(pairs) == [[number, number] for number in range(20)]
        assert list(dataset.element_spec[0]["image"].shape) == [None, 4, 5, 1]
    where = "part-0.parquet, row group 2: column 'image', row 1: "
    damages = {
        "the PNG image is cut off": encoded[13][:-9],
        "the checksum of the PNG image's chunk IDAT is wrong": (
            encoded[13][:45] + bytes([encoded[13][45] ^ 1]) + encoded[13][46:]
        ),
        "this is not a PNG, JPEG, GIF or BMP image (4 bytes)": b"text",
        "the JPEG image is cut off": b"\xff\xd8\xff" + b"a" * 30,
    }
    for expected, damage in damages.items():
        write([*encoded[:13], damage, *encoded[14:]])
        with pytest.raises(HopsError) as failure:
            open_split(folder, specs, label="y")
        assert f"{where}{expected}" in str(failure.value)
    streamed = open_split(folder, specs, label="y", **MODES["streamed"])
    with pytest.raises(tf.errors.OpError):
        list(streamed.dataset(7))
    assert f"{where}the JPEG image is cut off" in str(streamed.failure)
