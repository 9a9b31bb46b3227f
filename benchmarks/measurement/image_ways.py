"""The ways from image files to TFRecord that are measured; each runs in the runtime environment by itself.

``python -m benchmarks.measurement.image_ways <way> <folder>``, for :mod:`benchmarks.measurement.timing`. Both read,
decode, resize and crop the same JPEG files to 96 by 96 pixels, encode them as PNG and write tf.Examples.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measurement.worker import Work, perform

CLASSES, SIDE = 4, 96
HEIGHT, WIDTH = 240, 320


def write_photos(folder: str, count: str) -> Work:
    """Writes that many JPEG files of 320 by 240 pixels, of a grain and size as cameras give."""
    import tensorflow as tf

    def write() -> Mapping[str, Any]:
        random = np.random.default_rng(0)
        size = 0
        for number in range(int(count)):
            path = Path(folder) / f"class-{number % CLASSES}" / f"{number:06d}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            coarse = tf.image.resize(random.integers(0, 256, (12, 16, 3)).astype(np.float32), [HEIGHT, WIDTH])
            pixels = tf.clip_by_value(coarse + random.normal(0, 6, (HEIGHT, WIDTH, 3)), 0, 255)
            path.write_bytes(tf.io.encode_jpeg(tf.cast(pixels, tf.uint8), quality=90).numpy())
            size += path.stat().st_size
        return {"images": int(count), "bytes": size}

    return write


def own(folder: str) -> Work:
    """This project's preparation, on ``local[cores]``; once before the clock starts, so that its workers run."""

    import tensorflow  # noqa: F401  # the processes are forks, which then need not import it

    from airflow_hops.extensions.images import ImageSource
    from airflow_hops.extensions.images.core.images import ImageSpec
    from airflow_hops.extensions.images.ml.part import ImagePreparation, ImageSummary, prepare_part
    from airflow_hops.extensions.images.ml.plan import name_classes, plan_images
    from airflow_hops.ml.readers.artifact_files import OutputFolder
    from airflow_hops.ml.spark.pools import local_pool, run_parts

    def prepare() -> Mapping[str, Any]:
        with tempfile.TemporaryDirectory() as target, local_pool(len(os.sched_getaffinity(0))) as pool:
            plan = plan_images({"train": ImageSource(folder)})
            preparation = ImagePreparation(
                OutputFolder(target), ImageSpec(SIDE, SIDE, 3), name_classes(plan, None), "label"
            )
            summaries = run_parts(pool, prepare_part, preparation, plan.parts, ImageSummary)
            return {"images": sum(sum(summary.files.values()) for summary in summaries)}

    return prepare


def tf_data(folder: str) -> Work:
    """tf.data on one core: what a script would do that has no cluster."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    import tensorflow as tf

    from airflow_hops.extensions.images.core.images import ImageSpec
    from airflow_hops.extensions.images.ml.features import decode_pixels

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    spec = ImageSpec(SIDE, SIDE, 3)
    names = sorted(path.name for path in Path(folder).iterdir())
    files = sorted(str(path) for path in Path(folder).glob("*/*.jpg"))

    def prepare(limit: int | None = None) -> Mapping[str, Any]:
        target = tempfile.mkdtemp()
        dataset = tf.data.Dataset.from_tensor_slices(files[:limit])
        dataset = dataset.map(lambda path: (path, tf.io.encode_png(decode_pixels(tf.io.read_file(path), spec))))
        images = 0
        with tf.io.TFRecordWriter(f"{target}/part-00000.tfrecord") as writer:
            for path, encoded in dataset.prefetch(16).as_numpy_iterator():
                name = Path(path.decode()).parent.name
                example = tf.train.Example()
                feature = example.features.feature
                feature["key"].bytes_list.value.append(path)
                feature["image"].bytes_list.value.append(encoded)
                feature["label"].int64_list.value.append(names.index(name))
                writer.write(example.SerializeToString())
                images += 1
        shutil.rmtree(target)
        return {"images": images}

    prepare(64)
    return prepare


if __name__ == "__main__":
    perform({"write_photos": write_photos, "own": own, "tf_data": tf_data})
