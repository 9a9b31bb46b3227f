"""Images of all kinds and conditions, prepared on Spark; and what became of them."""

from __future__ import annotations

import gzip
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from airflow_hops.artifacts import Artifact
from airflow_hops.hops.images import ImageSpec, decode_image, decode_pixels, fit_pixels, normalise
from airflow_hops.protocol import Output
from airflow_hops.runtime.context import StepContext
from airflow_hops.runtime.feature_specs import FeatureSpecs
from airflow_hops.runtime.images.plan import plan_images
from airflow_hops.runtime.images.stage import run
from airflow_hops.runtime.images.task import ImagePreparation, prepare_task
from airflow_hops.runtime.tensorflow_graphs import import_tensorflow
from airflow_hops.runtime.transform_graph import export_serving_model, load_transform
from airflow_hops.sources import ImageSource

CLASSES = ("bird", "cat", "dog")


def pictures(count: int, height: int, width: int, channels: int, seed: int) -> np.ndarray[Any, Any]:
    """Smooth pictures, which a resizing does not blur to grey."""
    random = np.random.default_rng(seed)
    coarse = random.integers(0, 256, (count, 4, 4, channels)).astype(np.float32)
    tf = import_tensorflow()
    return tf.cast(tf.image.resize(coarse, [height, width]), tf.uint8).numpy()


def write_folders(root: Path) -> None:
    """``train``: 20 images a class, PNG and JPEG, grey and in colour, and four that are none. ``test``: 2 a class."""
    tf = import_tensorflow()
    for split, count in (("train", 20), ("test", 2)):
        for number, name in enumerate(CLASSES):
            (root / split / name / "more").mkdir(parents=True)
            for index, pixels in enumerate(pictures(count, 33 + 2 * number, 50, 3, number)):
                kind = "jpg" if index % 4 == 1 else "png"
                if kind == "jpg":
                    encoded = tf.io.encode_jpeg(pixels).numpy()
                else:
                    encoded = tf.io.encode_png(pixels[..., :1] if index % 4 == 3 else pixels).numpy()
                path = root / split / name / ("more" if index % 2 else "") / f"{index:02d}.{kind}"
                path.write_bytes(encoded)
    whole = (root / "train" / "cat" / "00.png").read_bytes()
    (root / "train" / "cat" / "broken.png").write_bytes(whole[: len(whole) // 2])
    (root / "train" / "dog" / "notes.txt").write_text("walked at seven")
    (root / "train" / "bird" / "empty.png").write_bytes(b"")
    (root / "train" / "loose.png").write_bytes(whole)
    (root / "hollow" / "cat").mkdir(parents=True)
    (root / "gap" / "unicorn").mkdir(parents=True)
    (root / "gap" / "cat").mkdir()
    (root / "gap" / "cat" / "one.png").write_bytes(whole)
    (root / "damaged" / "cat").mkdir(parents=True)
    (root / "damaged" / "cat" / "one.png").write_bytes(whole[:60])


def write_idx(root: Path) -> None:
    """200 images of 10 by 8 pixels with labels 0 to 3, and every way in which such files are wrong."""
    root.mkdir()
    # The brighter, the higher the label.
    pixels = pictures(200, 10, 8, 1, 9)[..., 0] // 3 + (40 * (np.arange(200) % 4)).astype(np.uint8)[:, None, None]
    images = struct.pack(">4I", 0x0803, 200, 10, 8) + pixels.tobytes()
    labels = struct.pack(">2I", 0x0801, 200) + bytes(number % 4 for number in range(200))
    (root / "images.gz").write_bytes(gzip.compress(images, mtime=0))
    (root / "labels").write_bytes(labels)
    (root / "cut.gz").write_bytes(gzip.compress(images, mtime=0)[:-3000])
    (root / "short").write_bytes(images[:-100])
    (root / "long").write_bytes(images + b"tail")
    (root / "fewer").write_bytes(struct.pack(">2I", 0x0801, 199) + labels[8:-1])
    (root / "floats").write_bytes(struct.pack(">4I", 0x0D03, 1, 1, 1) + b"\0\0\0\0")
    (root / "text").write_text("neither images nor labels")
    (root / "none").write_bytes(struct.pack(">4I", 0x0803, 0, 10, 8))
    (root / "no-labels").write_bytes(struct.pack(">2I", 0x0801, 0))


def write_parquet(root: Path) -> None:
    """30 images with names of classes: some are null, some are too small for a crop of 20 by 20, one is damaged."""
    tf = import_tensorflow()
    root.mkdir()
    large = [tf.io.encode_png(p).numpy() for p in pictures(24, 24, 30, 3, 3)]
    small = [tf.io.encode_png(p).numpy() for p in pictures(3, 24, 19, 3, 4)]
    images = [*large, *small, None, b"no image", large[0]]
    labels = [*(CLASSES[number % 3] for number in range(29)), None]
    keys = [f"photo {number}" for number in range(30)]
    table = pa.table({"id": keys, "photo": pa.array(images, pa.binary()), "species": labels})
    pq.write_table(table.slice(0, 16), root / "a.parquet", row_group_size=5)
    pq.write_table(table.slice(16), root / "b.parquet")
    huggingface = pa.array([{"bytes": image, "path": None} for image in images])
    (root / "structs").mkdir()
    pq.write_table(
        pa.table({"image": huggingface, "label": [n % 3 for n in range(30)]}), root / "structs" / "c.parquet"
    )
    (root / "words").mkdir()
    pq.write_table(pa.table({"image": ["a", "b"], "label": [0, 1]}), root / "words" / "d.parquet")


def run_all(context: StepContext, *, cases: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Runs the step once for each case, in one Spark application; what came out, or the error."""
    root = context.scratch / "sources"
    root.mkdir()
    write_folders(root)
    write_idx(root / "idx")
    write_parquet(root / "parquet")
    found: dict[str, Any] = {"root": str(root)}
    for name, given in cases.items():
        params = {"height": 16, "width": 12, "channels": 3, **given}
        params["sources"] = {split: _below(root, source) for split, source in params["sources"].items()}
        output = Output(context.store.uri("images", name, "transformed_examples"), "transformed_examples")
        step = StepContext(replace(context.spec, output=output), context.scratch)
        try:
            artifact = run(step, **params)
            found[name] = {**artifact.to_dict(), **look_at(context, artifact, root)}
        except Exception as error:
            found[name] = {
                "error": str(error),
                "type": type(error).__name__,
                "exists": context.store.exists(output.uri),
            }
    return found


def look_at(context: StepContext, artifact: Artifact, root: Path) -> dict[str, Any]:
    """Reads an artifact back: whether its parts agree, and what was set aside."""
    tf = import_tensorflow()
    folder = context.store.local(artifact)
    specs = FeatureSpecs.read(folder / "features.json")
    spec = specs.outputs["image"].image
    assert spec is not None
    graph = load_transform(folder / "transform_graph")
    found: dict[str, Any] = {"splits": {}, "spec": spec.to_dict(), "same": {}}
    for split in artifact.properties["splits"]:
        table = pa.concat_tables([pq.read_table(path) for path in sorted((folder / split).glob("*.parquet"))])
        records = [
            tf.train.Example.FromString(record.numpy()).features.feature
            for record in tf.data.TFRecordDataset(sorted(map(str, (folder / split).glob("*.tfrecord"))))
        ]
        rows = {
            "key": [record["key"].bytes_list.value[0].decode() for record in records],
            "image": [record["image"].bytes_list.value[0] for record in records],
            specs.label: [record[specs.label].int64_list.value[0] for record in records],
        }
        decoded = np.stack([decode_image(image, spec) for image in rows["image"]])
        found["same"][split] = {
            "records and columns": rows == {name: table.column(name).to_pylist() for name in rows},
            "reader and graph": bool(np.array_equal(decoded, graph(image=tf.constant(rows["image"]))["image"])),
        }
        found["splits"][split] = dict(zip(rows["key"], rows[specs.label], strict=True))
        found["mean"] = {**found.get("mean", {}), split: decoded.mean(axis=(0, 1, 2)).tolist()}
        found["std"] = {**found.get("std", {}), split: decoded.std(axis=(0, 1, 2)).tolist()}
        originals = [root / "train" / key for key in rows["key"] if (root / "train" / key).is_file()]
        if originals and split == "train":
            served = graph(image=tf.constant([path.read_bytes() for path in originals]))["image"].numpy()
            found["same"][split]["originals, served"] = bool(np.array_equal(decoded, served))
    rejected = sorted((folder / "rejected").glob("*.parquet"))
    if rejected:
        rows_rejected = pa.concat_tables([pq.read_table(path) for path in rejected]).to_pylist()
        found["rejected"] = [{**row, "image": row["image"] is not None} for row in rows_rejected]
    found["files"] = {
        str(path.relative_to(folder)): path.read_bytes().hex()[-64:] for path in sorted(folder.glob("*/part-*"))
    }
    found["counts"] = {path.parent.name: path.read_text() for path in folder.glob("*/counts.json")}
    return found


def definition(context: StepContext) -> dict[str, Any]:
    """What :mod:`airflow_hops.hops.images` makes of pixels, against what its words say."""
    tf = import_tensorflow()
    pixels = pictures(1, 60, 40, 3, 5)[0]
    png = tf.io.encode_png(pixels).numpy()
    found: dict[str, Any] = {}
    for fit in ("cover", "stretch", "crop"):
        spec = ImageSpec(20, 20, 3, fit=fit)
        first = decode_pixels(png, spec).numpy()
        again = decode_pixels(tf.io.encode_png(first), spec).numpy()
        found[fit] = {"shape": list(first.shape), "fixed": bool(np.array_equal(first, again))}
    crop = decode_pixels(png, ImageSpec(20, 20, 3, fit="crop")).numpy()
    found["crop is the middle"] = bool(np.array_equal(crop, pixels[20:40, 10:30]))
    cover = decode_pixels(png, ImageSpec(20, 20, 3)).numpy()
    resized = np.round(tf.image.resize(pixels, [30, 20], antialias=True))[5:25]
    found["cover is the middle"] = float(np.abs(cover - resized).max())
    numbers = normalise(crop, ImageSpec(20, 20, 3, mean=(0.1, 0.2, 0.3), scale=(0.5, 1.0, 2.0))).numpy()
    expected = (crop / 255.0 - [0.1, 0.2, 0.3]) / [0.5, 1.0, 2.0]
    found["normalised"] = float(np.abs(numbers - expected).max())
    grey = decode_pixels(tf.io.encode_png(pixels[..., :1]), ImageSpec(20, 20, 3, fit="crop")).numpy()
    found["grey in three"] = bool((grey == grey[..., :1]).all())
    graph = tf.function(lambda image: fit_pixels(image, ImageSpec(7, 9, 1)), autograph=False)
    found["enlarged"] = list(graph(tf.zeros([3, 2, 1], tf.uint8)).shape)
    found["errors"] = {}
    for name, given in {
        "channels": (8, 8, 2),
        "height": (0, 8, 1),
        "mean": (8, 8, 3, (0.5,)),
        "scale": (8, 8, 1, (), (0.0,)),
        "fit": (8, 8, 1, (), (), "squeeze"),
    }.items():
        try:
            ImageSpec(*given)
        except Exception as error:
            found["errors"][name] = str(error)
    return found


def a_full_disk(context: StepContext, *, target: str) -> dict[str, Any]:
    """A task whose target has no room; and one that had not, done again where there is."""
    root = context.scratch / "sources"
    root.mkdir()
    write_idx(root / "idx")
    noise = np.random.default_rng(0).integers(0, 256, (200, 60, 60)).astype(np.uint8)
    (root / "noise").write_bytes(struct.pack(">4I", 0x0803, 200, 60, 60) + noise.tobytes())
    source = ImageSource(str(root / "noise"), labels=str(root / "idx" / "labels"))
    (task,) = plan_images({"train": source}).tasks
    preparation = ImagePreparation(target, ImageSpec(60, 60, 1), tuple("abcd"), "label")
    summary = prepare_task(preparation, task)
    left = sorted(str(path.relative_to(target)) for path in Path(target).rglob("*") if path.is_file())
    elsewhere = replace(preparation, target=str(context.scratch / "elsewhere"))
    twice = [prepare_task(elsewhere, task) for _ in range(2)]
    files = sorted(path.name for path in (context.scratch / "elsewhere" / "train").iterdir())
    return {"summary": summary, "left": left, "twice": twice[0] == twice[1], "files": files}


def serve(context: StepContext) -> dict[str, Any]:
    """Exports a classifier of images, and asks both of its signatures; and ones that do not fit the classes."""
    tf = import_tensorflow()
    folder = context.local("images")
    table = pq.read_table(sorted((folder / "test").glob("*.parquet")))

    class Classifier(tf.Module):  # type: ignore[misc,name-defined]
        def __init__(self, classes: int) -> None:
            super().__init__()
            self.kernel = tf.Variable(tf.random.stateless_normal([16 * 12 * 3, classes], [1, 2]) * 0.02)

        def __call__(self, inputs: dict[str, Any]) -> Any:
            return tf.nn.softmax(tf.reshape(inputs["image"], [-1, 16 * 12 * 3]) @ self.kernel)

    path = context.scratch / "model"
    export_serving_model(path, folder / "transform_graph", Classifier(3), folder / "features.json")
    signatures = tf.saved_model.load(str(path)).signatures
    images = table.column("image").to_pylist()
    raw = signatures["serving_default"](image=tf.constant(images))
    examples = []
    for image in images:
        example = tf.train.Example()
        example.features.feature["image"].bytes_list.value.append(image)
        examples.append(example.SerializeToString())
    parsed = signatures["serving_examples"](examples=tf.constant(examples))
    errors = []
    for classes in (2, 1):
        try:
            export_serving_model(
                context.scratch / f"{classes}",
                folder / "transform_graph",
                Classifier(classes),
                folder / "features.json",
            )
        except Exception as error:
            errors.append(str(error))
    return {
        "outputs": {name: [values.dtype.name, list(values.shape)] for name, values in raw.items()},
        "equal": all(bool(np.array_equal(raw[name], parsed[name])) for name in raw),
        "classes": [name.decode() for name in raw["class"].numpy()],
        "likeliest": [CLASSES[index] for index in raw["probabilities"].numpy().argmax(axis=1)],
        "errors": errors,
    }


def write_model(context: StepContext, *, steps: int, seed: int = 1) -> Artifact:
    """A linear classifier of the prepared images, exported for serving; with 0 steps it guesses."""
    tf = import_tensorflow()
    folder = context.local("images")
    table = pq.read_table(sorted((folder / "train").glob("*.parquet")))
    inputs = load_transform(folder / "transform_graph")(image=tf.constant(table.column("image").to_pylist()))["image"]
    labels = tf.one_hot(table.column("label").to_numpy(), 4)

    class Linear(tf.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.kernel = tf.Variable(tf.random.stateless_normal([80, 4], [seed, 2]) * 0.01)

        def __call__(self, inputs: dict[str, Any]) -> Any:
            return tf.nn.softmax(tf.reshape(inputs["image"], [-1, 80]) @ self.kernel)

    model = Linear()
    for _ in range(steps):
        error = model({"image": inputs}) - labels
        gradient = tf.matmul(tf.reshape(inputs, [-1, 80]), error, transpose_a=True)
        model.kernel.assign_sub(gradient / len(labels))
    with context.output() as writer:
        export_serving_model(writer.path / "saved_model", folder / "transform_graph", model, folder / "features.json")
        return writer.commit(properties={"statistics": None, "schema": None, "synchronized": True})


def _below(root: Path, source: Any) -> Any:
    if isinstance(source, str):
        return str(root / source)
    labels = {"labels": str(root / source["labels"])} if "labels" in source else {}
    return {**source, "uri": str(root / source["uri"]), **labels}
