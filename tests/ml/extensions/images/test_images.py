"""The images stage: folders, Parquet and IDX files to what training, evaluation and serving take."""

from __future__ import annotations

import gzip
import json
import struct
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.errors import BadInput
from airflow_hops.core.store import ArtifactStore
from airflow_hops.extensions.images import ImageSource
from airflow_hops.extensions.images.core.images import ImageSpec, packed_role
from airflow_hops.extensions.images.ml import pack
from airflow_hops.extensions.images.ml.features import decode_image, decode_pixels, fit_pixels, normalise
from airflow_hops.extensions.images.ml.part import ImagePreparation, prepare_part
from airflow_hops.extensions.images.ml.plan import plan_images
from airflow_hops.extensions.images.ml.stage import run
from airflow_hops.ml import infra_validate
from airflow_hops.ml.features.feature_specs import FeatureSpecs
from airflow_hops.ml.features.serving_export import export_serving_model
from airflow_hops.ml.features.transform_graph import load_transform
from airflow_hops.ml.readers.artifact_files import OutputFolder
from tests.ml.conftest import step_context

CLASSES = ("bird", "cat", "dog")


def pictures(count: int, height: int, width: int, channels: int, seed: int) -> np.ndarray[Any, Any]:
    """Smooth pictures, which a resizing does not blur to grey."""
    random = np.random.default_rng(seed)
    coarse = random.integers(0, 256, (count, 4, 4, channels)).astype(np.float32)
    import tensorflow as tf

    return tf.cast(tf.image.resize(coarse, [height, width]), tf.uint8).numpy()


def write_folders(root: Path) -> None:
    """``train``: 12 images a class, PNG and JPEG, grey and in colour, and six that are none. ``test``: 2 a class."""
    import tensorflow as tf

    for split, count in (("train", 12), ("test", 2)):
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
    (root / "train" / "cat" / "deep.png").write_bytes(tf.io.encode_png(tf.zeros([9, 9, 1], tf.uint16)).numpy())
    wide = struct.pack(">II", 23_000, 23_000)
    (root / "train" / "dog" / "wide.png").write_bytes(whole[:16] + wide + whole[24:])
    (root / "gap" / "unicorn").mkdir(parents=True)
    (root / "gap" / "cat").mkdir()
    (root / "gap" / "cat" / "one.png").write_bytes(whole)
    (root / "damaged" / "cat").mkdir(parents=True)
    (root / "damaged" / "cat" / "one.png").write_bytes(whole[:60])


def write_idx(root: Path) -> None:
    """100 images of 10 by 8 pixels with labels 0 to 3, and every way in which such files are wrong."""
    root.mkdir()
    pixels = pictures(100, 10, 8, 1, 9)[..., 0] // 3
    images = struct.pack(">4I", 0x0803, 100, 10, 8) + pixels.tobytes()
    labels = struct.pack(">2I", 0x0801, 100) + bytes(number % 4 for number in range(100))
    (root / "images.gz").write_bytes(gzip.compress(images, mtime=0))
    (root / "labels").write_bytes(labels)
    (root / "cut.gz").write_bytes(gzip.compress(images, mtime=0)[:-2000])
    (root / "short").write_bytes(images[:-100])
    (root / "long").write_bytes(images + b"tail")
    (root / "fewer").write_bytes(struct.pack(">2I", 0x0801, 99) + labels[8:-1])
    (root / "text").write_text("neither images nor labels")
    (root / "wide").write_bytes(struct.pack(">4I", 0x0803, 1, 60_000, 60_000))


def write_parquet(root: Path) -> None:
    """30 images with names of classes: some are null, some are too small for a crop of 20 by 20, one is damaged."""
    import tensorflow as tf

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


IDX = {"uri": "idx/images.gz", "labels": "idx/labels"}
NAMES = ["none", "one", "two", "three"]


def idx_case(**files: str) -> dict[str, Any]:
    return {"sources": {"train": {**IDX, **{name: f"idx/{file}" for name, file in files.items()}}}, "eval_percent": 0}


FOLDERS = {"sources": {"train": "train", "test": "test"}, "eval_percent": 30}
PHOTOS = {"uri": "parquet/*.parquet", "image_column": "photo", "label_column": "species", "key_column": "id"}
STRUCTS = {"sources": {"train": "parquet/structs"}, "eval_percent": 0, "classes": ["bird", "cat"]}
CASES: dict[str, dict[str, Any]] = {
    "folders": FOLDERS,
    "folders_again": FOLDERS,
    "idx": {"sources": {"train": IDX}, "height": 10, "width": 8, "channels": 1, "classes": NAMES, "eval_percent": 20},
    "idx_resized": {"sources": {"train": IDX}, "height": 5, "width": 4, "mean": [0.5] * 3, "scale": [0.25] * 3},
    "parquet": {
        "sources": {"train": PHOTOS}, "height": 20, "width": 20, "fit": "crop", "encoding": "jpeg", "eval_percent": 0,
        "label": "species",
    },
    "structs": {**STRUCTS, "max_rejected": 0.5},
    "many_rejected": STRUCTS,
    "cut": idx_case(uri="cut.gz"),
    "short": idx_case(uri="short"),
    "long": idx_case(uri="long"),
    "fewer": idx_case(labels="fewer"),
    "text": idx_case(uri="text"),
    "wide": idx_case(uri="wide"),
    "gap": {"sources": {"train": "gap"}, "eval_percent": 0},
    "damaged": {"sources": {"train": "damaged"}, "eval_percent": 0},
    "too_small": {"sources": {"train": IDX}, "fit": "crop"},
    "mixed": {"sources": {"train": IDX, "test": "test"}},
    "no_column": {"sources": {"train": {"uri": "parquet/a.parquet", "label_column": "species"}}},
    "words": {"sources": {"train": "parquet/words"}},
    "file": {"sources": {"train": "train/loose.png"}},
    "no_train": {"sources": {"test": "test"}},
    "opacity": {"sources": {"train": "train"}, "channels": 4, "encoding": "jpeg"},
}  # fmt: skip


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of all that is prepared."""
    root = tmp_path_factory.mktemp("sources")
    write_folders(root)
    write_idx(root / "idx")
    write_parquet(root / "parquet")
    return root


@pytest.fixture(scope="module")
def prepare(
    spark: Any, sources: Path, shared_store: ArtifactStore, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Artifact]:
    scratch = tmp_path_factory.mktemp("images")

    @cache
    def prepare(case: str) -> Artifact:
        params = {"height": 16, "width": 12, "channels": 3, **CASES[case]}
        params["sources"] = {split: _below(sources, source) for split, source in params["sources"].items()}
        context = step_context(shared_store, scratch, kind="transformed_examples", run_id=f"images-{case}")
        try:
            return run(context, **params)
        except BadInput:
            assert context.spec.output is not None
            assert not shared_store.exists(context.spec.output.uri)
            raise

    return prepare


@pytest.fixture(scope="module")
def prepared(prepare: Callable[[str], Artifact], sources: Path, shared_store: ArtifactStore) -> Callable[[str], Any]:
    @cache
    def prepared(case: str) -> dict[str, Any]:
        artifact = prepare(case)
        return {**artifact.to_dict(), **look_at(shared_store, artifact, sources)}

    return prepared


def look_at(store: ArtifactStore, artifact: Artifact, root: Path) -> dict[str, Any]:
    """Reads an artifact back: whether its parts agree, and what was set aside."""
    import tensorflow as tf

    folder = store.local(artifact)
    specs = FeatureSpecs.read(folder / "features.json")
    encoding = specs.outputs["image"].encoding
    assert encoding is not None
    spec = ImageSpec(**encoding.options)
    graph = load_transform(folder / "transform_graph")
    results: dict[str, Any] = {"splits": {}, "spec": spec.to_dict(), "same": {}}
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
        results["same"][split] = {
            "records and columns": rows == {name: table.column(name).to_pylist() for name in rows},
            "reader and graph": bool(np.array_equal(decoded, graph(image=np.array(rows["image"], object))["image"])),
        }
        results["splits"][split] = dict(zip(rows["key"], rows[specs.label], strict=True))
        results["mean"] = {**results.get("mean", {}), split: decoded.mean(axis=(0, 1, 2)).tolist()}
        results["std"] = {**results.get("std", {}), split: decoded.std(axis=(0, 1, 2)).tolist()}
        originals = [root / "train" / key for key in rows["key"] if (root / "train" / key).is_file()]
        if originals and split == "train":
            served = graph(image=np.array([path.read_bytes() for path in originals], object))["image"]
            results["same"][split]["originals, served"] = bool(np.array_equal(decoded, served))
    rejected = sorted((folder / "rejected").glob("*.parquet"))
    if rejected:
        rows_rejected = pa.concat_tables([pq.read_table(path) for path in rejected]).to_pylist()
        results["rejected"] = [{**row, "image": row["image"] is not None} for row in rows_rejected]
    results["files"] = {
        str(path.relative_to(folder)): path.read_bytes().hex()[-64:] for path in sorted(folder.glob("*/part-*"))
    }
    results["counts"] = {path.parent.name: path.read_text() for path in folder.glob("*/counts.json")}
    return results


def test_image_matches_its_definition() -> None:
    import tensorflow as tf

    pixels = pictures(1, 60, 40, 3, 5)[0]
    png = tf.io.encode_png(pixels).numpy()
    for fit in ("cover", "stretch", "crop"):
        spec = ImageSpec(20, 20, 3, fit=fit)
        first = decode_pixels(png, spec).numpy()
        assert first.shape == (20, 20, 3)
        assert np.array_equal(first, decode_pixels(tf.io.encode_png(first), spec).numpy())
    crop = decode_pixels(png, ImageSpec(20, 20, 3, fit="crop")).numpy()
    assert np.array_equal(crop, pixels[20:40, 10:30]), "the middle"
    cover = decode_pixels(png, ImageSpec(20, 20, 3)).numpy()
    assert np.array_equal(cover, np.round(tf.image.resize(pixels, [30, 20], antialias=True))[5:25]), "the middle"
    numbers = normalise(crop, ImageSpec(20, 20, 3, mean=(0.1, 0.2, 0.3), scale=(0.5, 1.0, 2.0))).numpy()
    assert numbers == pytest.approx((crop / 255.0 - [0.1, 0.2, 0.3]) / [0.5, 1.0, 2.0], abs=1e-6)
    grey = decode_pixels(tf.io.encode_png(pixels[..., :1]), ImageSpec(20, 20, 3, fit="crop")).numpy()
    assert (grey == grey[..., :1]).all(), "grey in three channels"
    graph = tf.function(lambda image: fit_pixels(image, ImageSpec(7, 9, 1)), autograph=False)
    assert graph(tf.zeros([3, 2, 1], tf.uint8)).shape == (7, 9, 1), "enlarged"


def test_packed_folders_are_prepared_like_folders(
    prepared: Callable[[str], Any], shared_store: ArtifactStore, sources: Path, tmp_path: Path
) -> None:
    context = step_context(shared_store, tmp_path, kind="packed_files")
    packed = pack.run(context, source={"uri": str(sources / "train")}, shard_mb=1)
    params = {"height": 16, "width": 12, "channels": 3, **CASES["folders"]}
    params["sources"] = {"train": packed.uri, "test": str(sources / "test")}
    inputs = {packed_role("train"): packed}
    artifact = run(step_context(shared_store, tmp_path, kind="transformed_examples", **inputs), **params)
    expected = prepared("folders")
    assert artifact.to_dict()["rows"] == expected["rows"]
    assert artifact.properties == expected["properties"]
    result = look_at(shared_store, artifact, sources)
    assert result["splits"] == expected["splits"]
    assert result["same"] == expected["same"]
    by_key = [{row["key"]: row["reason"] for row in split["rejected"]} for split in (result, expected)]
    assert by_key[0] == by_key[1]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ((8, 8, 2), "channels is 2, expected one of 1 (greyscale), 3 (RGB), 4 (RGB with opacity)"),
        ((0, 8, 1), "height is 0, expected a whole number of pixels, 1 or more"),
        ((8, 8, 3, (0.5,)), "mean is (0.5,), expected 3 finite numbers, by channel"),
        ((8, 8, 1, (), (0.0,)), "scale is (0.0,), expected numbers above 0"),
        ((8, 8, 1, (), (), "squeeze"), "fit is 'squeeze', expected one of cover, stretch, crop"),
    ],
)
def test_invalid_image_definition_is_refused(given: Any, expected: str) -> None:
    with pytest.raises(BadInput) as refusal:
        ImageSpec(*given)
    assert str(refusal.value) == expected


def test_repeated_part_writes_once(sources: Path, tmp_path: Path, small_folder: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (100, 90, 90)).astype(np.uint8)
    (tmp_path / "noise").write_bytes(struct.pack(">4I", 0x0803, 100, 90, 90) + noise.tobytes())
    source = ImageSource(str(tmp_path / "noise"), labels=str(sources / "idx" / "labels"))
    (part,), _ = plan_images({"train": source})
    preparation = ImagePreparation(OutputFolder(str(small_folder)), ImageSpec(90, 90, 1), tuple("abcd"), "label")
    summary = json.loads(prepare_part(preparation, part))
    assert summary["no_space"] and "no space left on the device" in summary["error"]
    assert [path for path in small_folder.rglob("*") if path.is_file()] == []
    elsewhere = replace(preparation, folder=OutputFolder(str(tmp_path / "elsewhere")))
    assert prepare_part(elsewhere, part) == prepare_part(elsewhere, part)
    files = sorted(path.name for path in (tmp_path / "elsewhere" / "train").iterdir())
    assert files == ["part-00000.parquet", "part-00000.tfrecord"]


@pytest.mark.server
def test_image_classifier_answers_both_signatures(prepare: Any, shared_store: ArtifactStore, tmp_path: Path) -> None:
    import tensorflow as tf

    folder = shared_store.local(prepare("folders"))

    class Classifier(tf.Module):  # type: ignore[misc,name-defined]
        def __init__(self, classes: int) -> None:
            super().__init__()
            self.kernel = tf.Variable(tf.random.stateless_normal([16 * 12 * 3, classes], [1, 2]) * 0.02)

        def __call__(self, inputs: dict[str, Any]) -> Any:
            return tf.nn.softmax(tf.reshape(inputs["image"], [-1, 16 * 12 * 3]) @ self.kernel)

    def export(classes: int) -> Path:
        path = tmp_path / str(classes)
        export_serving_model(path, folder / "transform_graph", Classifier(classes), folder / "features.json")
        return path

    files = sorted((folder / "test").glob("*.parquet"))
    (tmp_path / "scratch").mkdir()
    assert infra_validate.validate_serving(export(3), files, tmp_path / "scratch", requests=4)["rows"] == 4
    signatures = tf.saved_model.load(str(tmp_path / "3")).signatures
    images = pq.read_table(files).column("image").to_pylist()
    raw = signatures["serving_default"](image=tf.constant(images))
    examples = [tf.train.Example() for _ in images]
    for example, image in zip(examples, images, strict=True):
        example.features.feature["image"].bytes_list.value.append(image)
    parsed = signatures["serving_examples"](examples=tf.constant([each.SerializeToString() for each in examples]))
    outputs = {name: (values.dtype.name, list(values.shape)) for name, values in raw.items()}
    assert outputs == {"probabilities": ("float32", [6, 3]), "class": ("string", [6])}
    assert all(np.array_equal(raw[name], parsed[name]) for name in raw)
    likeliest = [CLASSES[index] for index in raw["probabilities"].numpy().argmax(axis=1)]
    assert [name.decode() for name in raw["class"].numpy()] == likeliest
    for classes in (2, 1):
        with pytest.raises(BadInput, match=rf"has shape \(None, {classes}\), but there are 3 classes"):
            export(classes)


def _below(root: Path, source: Any) -> Any:
    if isinstance(source, str):
        return str(root / source)
    labels = {"labels": str(root / source["labels"])} if "labels" in source else {}
    return {**source, "uri": str(root / source["uri"]), **labels}


def test_every_image_is_split_or_rejected(prepared: Any) -> None:
    result = prepared("folders")
    rows = result["rows"]
    assert {name: counts["rows_out"] for name, counts in rows.items()} == {
        name: len(keys) for name, keys in result["splits"].items()
    }
    keys = {**result["splits"]["train"], **result["splits"]["eval"]}
    assert len(keys) == 36 and Counter(keys.values()) == {0: 12, 1: 12, 2: 12}
    assert all(["bird", "cat", "dog"][number] == key.partition("/")[0] for key, number in keys.items())
    assert 3 < len(result["splits"]["eval"]) < 22 and len(result["splits"]["test"]) == 6
    assert sum(rows[split]["rows_in"] for split in ("train", "eval")) == 42
    rejected = {row["key"]: row for row in result["rejected"]}
    assert {key: row["reason"] for key, row in rejected.items()} == {
        "bird/empty.png": "image is missing",
        "cat/broken.png": "not an image",
        "cat/deep.png": "16 bits a channel",
        "dog/wide.png": "more than 67108864 pixels",
        "dog/notes.txt": "not an image",
        "loose.png": "label is missing",
    }
    assert rejected["dog/notes.txt"]["detail"].startswith("Unknown image file format")
    assert rejected["cat/broken.png"]["where"].endswith("/train/cat/broken.png")
    totals = Counter()
    for counts in rows.values():
        totals.update(counts["rejected"])
    assert totals == Counter(row["reason"] for row in rejected.values())
    properties = result["properties"]
    assert (properties["classes"], properties["splits"]) == (["bird", "cat", "dog"], ["train", "eval", "test"])
    assert properties["by_class"]["test"] == {"bird": 2, "cat": 2, "dog": 2}
    assert (properties["label"], properties["key"], properties["features"]) == ("label", "key", ["image"])


@pytest.mark.parametrize("case", ["folders", "idx", "idx_resized", "structs"])
def test_records_columns_reader_and_graph_agree(prepared: Any, case: str) -> None:
    for split, same in prepared(case)["same"].items():
        assert all(same.values()), (split, same)
    assert ("originals, served" in prepared(case)["same"]["train"]) == (case == "folders")


def test_training_images_set_normalisation(prepared: Any) -> None:
    for case in ("folders", "idx"):
        mean, std = (prepared(case)[name]["train"] for name in ("mean", "std"))
        assert mean == pytest.approx([0.0] * len(mean), abs=1e-4) and std == pytest.approx([1.0] * len(std), abs=1e-4)
    spec = prepared("idx_resized")["spec"]
    assert (spec["mean"], spec["scale"]) == ([0.5] * 3, [0.25] * 3)


def test_equal_images_give_equal_bytes(prepared: Any) -> None:
    assert prepared("folders")["files"] == prepared("folders_again")["files"]
    assert prepared("folders")["splits"] == prepared("folders_again")["splits"]


def test_counts_list_records_of_each_file(prepared: Any) -> None:
    result = prepared("folders")
    for split, keys in result["splits"].items():
        counts = json.loads(result["counts"][split])
        assert sum(counts.values()) == len(keys)
        files = {name for name in result["files"] if name.startswith(f"{split}/") and name.endswith(".tfrecord")}
        assert {f"{split}/{name}" for name in counts} == files


def test_idx_images_have_class_names(prepared: Any) -> None:
    result = prepared("idx")
    keys = {**result["splits"]["train"], **result["splits"]["eval"]}
    assert keys == {f"train/{n:08d}": n % 4 for n in range(100)}
    assert result["properties"]["classes"] == NAMES


def test_rejected_parquet_rows_keep_bytes(prepared: Any) -> None:
    result = prepared("parquet")
    assert result["rows"]["train"] == {
        "rows_in": 30,
        "rows_out": 24,
        "rejected": {"smaller than the crop": 3, "image is missing": 1, "not an image": 1, "label is missing": 1},
    }
    rejected = {row["key"]: (row["reason"], row["image"]) for row in result["rejected"]}
    assert {key: value for key, value in rejected.items() if key > "photo 26"} == {
        "photo 27": ("image is missing", False),
        "photo 28": ("not an image", True),
        "photo 29": ("label is missing", True),
    }
    assert rejected["photo 24"] == ("smaller than the crop", True)
    assert set(result["splits"]["train"]) == {f"photo {number}" for number in range(24)}


def test_number_without_class_is_rejected(prepared: Any) -> None:
    rows = prepared("structs")["rows"]["train"]
    # Of 30 images 10 are of a third class, two others have no image.
    assert rows["rejected"]["unknown class"] == 10 and rows["rows_in"] == 30
    assert rows["rows_out"] == 30 - sum(rows["rejected"].values())


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("cut", "/idx/cut.gz: damaged: Compressed file ended before"),
        ("short", "/idx/short: it ends early, where its header promises 8,016 bytes"),
        ("long", "/idx/long: it has more than the 8,016 bytes that its header promises"),
        ("fewer", "/idx/fewer has 99 labels for the 100 images of "),
        ("text", "/idx/text: not an IDX file: it begins with 6e 65 69 74"),
        ("wide", "/idx/wide: images of 3600000000 pixels by its header; the limit is 67108864 pixels"),
        ("gap", "1 of 2 classes have no image in split 'train': 'unicorn'"),
        ("damaged", "split 'train' has no images, of 1 that were read; 1 were rejected: not an image"),
        ("too_small", "split 'train' has no images, of "),
        (
            "many_rejected",
            "sources['train']: 10 of 30 rows (33.3%) are rejected for 'unknown class', more than max_rejected=0.1 "
            "allows; rejected in all: unknown class 10, ",
        ),
        ("mixed", "some sources name their classes (bird), others number them (0)"),
        ("no_column", "/parquet/a.parquet: there is no column 'image'; it has id, photo, species"),
        ("words", "column 'image' is string, expected binary, or a struct with a field 'bytes'"),
        ("file", "expected a folder with a folder of image files for each class"),
        ("no_train", "sources has no 'train'; it has test"),
        ("opacity", "encoding is 'jpeg', which has no alpha channel"),
    ],
)
def test_bad_input_is_named_and_leaves_no_artifact(prepare: Any, case: str, words: str) -> None:
    with pytest.raises(BadInput) as refusal:
        prepare(case)
    assert words in str(refusal.value)
