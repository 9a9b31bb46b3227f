"""The images stage: folders, Parquet and IDX files to what training, evaluation and serving take."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from airflow_hops.artifacts import Artifact, BadInput
from airflow_hops.hooks.runtime import StepFailed
from airflow_hops.operators import ImageSource, PrepareImagesOperator
from airflow_hops.runtime.binary_metrics import paired_difference
from airflow_hops.runtime.class_metrics import class_metrics, compare_classifiers

pytestmark = pytest.mark.runtime
CHECKS = (str(Path(__file__).parent / "runtime_checks"),)

IDX = {"uri": "idx/images.gz", "labels": "idx/labels"}
NAMES = ["none", "one", "two", "three"]


def idx_case(**files: str) -> dict[str, Any]:
    return {"sources": {"train": {**IDX, **{name: f"idx/{file}" for name, file in files.items()}}}, "eval_percent": 0}


CASES: dict[str, dict[str, Any]] = {
    "folders": {"sources": {"train": "train", "test": "test"}, "eval_percent": 30},
    "folders_again": {"sources": {"train": "train", "test": "test"}, "eval_percent": 30},
    "idx": {"sources": {"train": IDX}, "height": 10, "width": 8, "channels": 1, "classes": NAMES, "eval_percent": 20},
    "idx_resized": {"sources": {"train": IDX}, "height": 5, "width": 4, "mean": [0.5] * 3, "scale": [0.25] * 3},
    "parquet": {
        "sources": {
            "train": {
                "uri": "parquet/*.parquet",
                "image_column": "photo",
                "label_column": "species",
                "key_column": "id",
            }
        },
        "height": 20,
        "width": 20,
        "fit": "crop",
        "encoding": "jpeg",
        "eval_percent": 0,
        "label": "species",
    },
    "structs": {"sources": {"train": "parquet/structs"}, "eval_percent": 0, "classes": ["bird", "cat"]},
    "cut": idx_case(uri="cut.gz"),
    "short": idx_case(uri="short"),
    "long": idx_case(uri="long"),
    "fewer": idx_case(labels="fewer"),
    "floats": idx_case(uri="floats"),
    "text": idx_case(uri="text"),
    "none": idx_case(uri="none", labels="no-labels"),
    "no_labels": {"sources": {"train": "idx/images.gz"}},
    "hollow": {"sources": {"train": "hollow"}},
    "gap": {"sources": {"train": "gap"}, "eval_percent": 0},
    "damaged": {"sources": {"train": "damaged"}, "eval_percent": 0},
    "too_small": {"sources": {"train": IDX}, "fit": "crop"},
    "mixed": {"sources": {"train": IDX, "test": "test"}},
    "no_column": {"sources": {"train": {"uri": "parquet/a.parquet", "label_column": "species"}}},
    "words": {"sources": {"train": "parquet/words"}},
    "file": {"sources": {"train": "train/loose.png"}},
    "nowhere": {"sources": {"train": "nowhere"}},
    "no_train": {"sources": {"test": "test"}},
    "two_evals": {"sources": {"train": "train", "eval": "test"}},
    "channels": {"sources": {"train": "train"}, "channels": 2},
    "opacity": {"sources": {"train": "train"}, "channels": 4, "encoding": "jpeg"},
}


@pytest.fixture(scope="module")
def cases(shared_run_step: Any, runtime: Path) -> dict[str, Any]:
    """All cases, run in one Spark application."""
    from airflow_hops.launchers.spark import SparkLauncher

    found: dict[str, Any] = shared_run_step(
        "image_checks:run_all",
        params={"cases": CASES},
        code_paths=CHECKS,
        launcher=SparkLauncher(runtime, "spark_local"),
    )
    return found


@pytest.fixture(scope="module")
def check(shared_run_step: Any, warm_launcher: Any) -> Any:
    def run(name: str, **kwargs: Any) -> Any:
        return shared_run_step(f"image_checks:{name}", code_paths=CHECKS, launcher=warm_launcher, **kwargs)

    return run


def test_an_image_is_what_its_definition_says(check: Any) -> None:
    found = check("definition")
    for fit in ("cover", "stretch", "crop"):
        assert found[fit] == {"shape": [20, 20, 3], "fixed": True}
    assert found["crop is the middle"] and found["grey in three"]
    assert found["cover is the middle"] == 0 and found["normalised"] < 1e-6
    assert found["enlarged"] == [7, 9, 1]
    errors = found["errors"]
    assert errors["channels"] == "channels is 2, expected one of 1 (greyscale), 3 (RGB), 4 (RGB with opacity)"
    assert errors["height"] == "height is 0, expected a whole number of pixels, 1 or more"
    assert errors["mean"] == "mean is (0.5,), expected 3 finite numbers, by channel"
    assert errors["scale"] == "scale is (0.0,), expected numbers above 0"
    assert errors["fit"] == "fit is 'squeeze', expected one of cover, stretch, crop"


@pytest.mark.spark
def test_every_image_of_a_folder_is_in_a_split_or_set_aside_with_its_reason(cases: Any) -> None:
    found = cases["folders"]
    rows = found["rows"]
    assert {name: counts["rows_out"] for name, counts in rows.items()} == {
        name: len(keys) for name, keys in found["splits"].items()
    }
    keys = {**found["splits"]["train"], **found["splits"]["eval"]}
    assert len(keys) == 60 and Counter(keys.values()) == {0: 20, 1: 20, 2: 20}
    assert all(["bird", "cat", "dog"][number] == key.partition("/")[0] for key, number in keys.items())
    assert 5 < len(found["splits"]["eval"]) < 35 and len(found["splits"]["test"]) == 6
    assert sum(rows[split]["rows_in"] for split in ("train", "eval")) == 64
    rejected = {row["key"]: row for row in found["rejected"]}
    assert {key: row["reason"] for key, row in rejected.items()} == {
        "bird/empty.png": "image is missing",
        "cat/broken.png": "not an image",
        "dog/notes.txt": "not an image",
        "loose.png": "label is missing",
    }
    assert rejected["dog/notes.txt"]["detail"].startswith("Unknown image file format")
    assert rejected["cat/broken.png"]["where"].endswith("/train/cat/broken.png")
    totals = Counter()
    for counts in rows.values():
        totals.update(counts["rejected"])
    assert totals == {"image is missing": 1, "not an image": 2, "label is missing": 1}
    properties = found["properties"]
    assert (properties["classes"], properties["splits"]) == (["bird", "cat", "dog"], ["train", "eval", "test"])
    assert properties["by_class"]["test"] == {"bird": 2, "cat": 2, "dog": 2}
    assert (properties["label"], properties["key"], properties["features"]) == ("label", "key", ["image"])


@pytest.mark.spark
@pytest.mark.parametrize("case", ["folders", "idx", "idx_resized", "structs"])
def test_records_columns_reader_and_graph_agree(cases: Any, case: str) -> None:
    for split, same in cases[case]["same"].items():
        assert all(same.values()), (split, same)


@pytest.mark.spark
def test_an_original_is_served_as_the_very_numbers_that_were_trained_on(cases: Any) -> None:
    assert cases["folders"]["same"]["train"]["originals, served"] is True


@pytest.mark.spark
def test_numbers_are_normalised_by_the_training_images_unless_told_otherwise(cases: Any) -> None:
    for case in ("folders", "idx"):
        assert cases[case]["mean"]["train"] == pytest.approx([0.0] * len(cases[case]["mean"]["train"]), abs=1e-4)
        assert cases[case]["std"]["train"] == pytest.approx([1.0] * len(cases[case]["std"]["train"]), abs=1e-4)
    assert cases["idx_resized"]["spec"]["mean"] == [0.5] * 3 and cases["idx_resized"]["spec"]["scale"] == [0.25] * 3


@pytest.mark.spark
def test_the_same_images_come_out_as_the_same_bytes(cases: Any) -> None:
    assert cases["folders"]["files"] == cases["folders_again"]["files"]
    assert cases["folders"]["splits"] == cases["folders_again"]["splits"]


@pytest.mark.spark
def test_counts_tell_the_records_of_each_file(cases: Any) -> None:
    for split, keys in cases["folders"]["splits"].items():
        counts = json.loads(cases["folders"]["counts"][split])
        assert sum(counts.values()) == len(keys)
        assert {f"{split}/{name}" for name in counts} == {
            name for name in cases["folders"]["files"] if name.startswith(f"{split}/") and name.endswith(".tfrecord")
        }


@pytest.mark.spark
def test_idx_images_have_the_names_of_their_classes(cases: Any) -> None:
    found = cases["idx"]
    keys = {**found["splits"]["train"], **found["splits"]["eval"]}
    assert keys == {f"train/{n:08d}": n % 4 for n in range(200)}
    assert found["properties"]["classes"] == NAMES


@pytest.mark.spark
def test_rows_of_parquet_that_are_no_image_keep_their_bytes_beside_the_reason(cases: Any) -> None:
    found = cases["parquet"]
    assert found["rows"]["train"] == {
        "rows_in": 30,
        "rows_out": 24,
        "rejected": {"smaller than the crop": 3, "image is missing": 1, "not an image": 1, "label is missing": 1},
    }
    rejected = {row["key"]: (row["reason"], row["image"]) for row in found["rejected"]}
    assert rejected["photo 24"] == ("smaller than the crop", True)
    assert rejected["photo 27"] == ("image is missing", False)
    assert rejected["photo 28"] == ("not an image", True)
    assert rejected["photo 29"] == ("label is missing", True)
    assert set(found["splits"]["train"]) == {f"photo {number}" for number in range(24)}


@pytest.mark.spark
def test_a_number_without_a_class_is_set_aside(cases: Any) -> None:
    rows = cases["structs"]["rows"]["train"]
    # Of 30 images 10 are of a third class, two others have no image.
    assert rows["rejected"]["unknown class"] == 10 and rows["rows_in"] == 30
    assert rows["rows_out"] == 30 - sum(rows["rejected"].values())


@pytest.mark.spark
@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("cut", "/idx/cut.gz: it ends after "),
        ("short", "/idx/short: it ends after 15,916 bytes, but its header promises 16,016"),
        ("long", "/idx/long: 16,020 bytes, but its header promises 16,016"),
        ("fewer", "/idx/fewer has 199 labels for the 200 images of "),
        ("floats", "IDX values of type 0x0d in 3 dimensions; expected unsigned bytes (0x08) in 3 or 4"),
        ("text", "/idx/text: not an IDX file: it begins with 6e 65 69 74"),
        ("none", "sources['train']: "),
        ("no_labels", "expected one, and in 'labels' that of its labels"),
        ("hollow", "no file matches"),
        ("gap", "1 of 2 classes have no image in split 'train': 'unicorn'"),
        ("damaged", "split 'train' has no images, of 1 that were read; 1 were rejected: not an image"),
        ("too_small", "split 'train' has no images, of "),
        ("mixed", "some sources name their classes (bird), others number them (0)"),
        ("no_column", "/parquet/a.parquet: there is no column 'image'; it has id, photo, species"),
        ("words", "column 'image' is string, expected binary, or a struct with a field 'bytes'"),
        ("file", "expected a folder with a folder of image files for each class"),
        ("nowhere", "/nowhere': no file matches"),
        ("no_train", "sources has no 'train'; it has test"),
        ("two_evals", "sources has a split 'eval', and eval_percent is 10; expected 0 then"),
        ("channels", "channels is 2, expected one of "),
        ("opacity", "encoding is 'jpeg', which knows no opacity"),
    ],
)
def test_bad_input_is_named_and_leaves_nothing(cases: Any, case: str, words: str) -> None:
    found = cases[case]
    assert (found["type"], found["exists"]) == ("BadInput", False), found
    assert words in found["error"]


def test_a_full_disk_leaves_nothing_half_written_and_a_task_done_twice_writes_once(
    check: Any, small_folder: Path
) -> None:
    found = check("a_full_disk", params={"target": str(small_folder)})
    summary = json.loads(found["summary"])
    assert summary["no_space"] and "no space left on the device" in summary["error"]
    assert found["left"] == []
    assert found["twice"] and found["files"] == ["part-00000.parquet", "part-00000.tfrecord"]


@pytest.mark.spark
def test_a_classifier_of_images_answers_by_both_signatures(cases: Any, check: Any) -> None:
    found = check("serve", inputs={"images": Artifact.from_dict(cases["folders"])})
    assert found["outputs"] == {"probabilities": ["float32", [6, 3]], "class": ["string", [6]]}
    assert found["equal"] and found["classes"] == found["likeliest"]
    assert [error.partition("has shape ")[2] for error in found["errors"]] == [
        "(None, 2), but there are 3 classes",
        "(None, 1), but there are 3 classes",
    ]


@pytest.mark.spark
def test_a_model_of_several_classes_is_judged_and_asked_over_the_wire(
    cases: Any, check: Any, shared_run_step: Any, warm_launcher: Any
) -> None:
    images = Artifact.from_dict(cases["idx"])
    model, guess = (
        check("write_model", params={"steps": steps}, inputs={"images": images}, kind="model") for steps in (150, 0)
    )

    def evaluate(model: Artifact, **params: Any) -> Any:
        given = {"model_name": "marks", "splits": ["eval"], "metric": "accuracy", **params}
        return shared_run_step(
            "airflow_hops.runtime.evaluate:run",
            params=given,
            inputs={"model": model, "examples": images},
            kind="evaluation",
            launcher=warm_launcher,
        )

    blessed = evaluate(model, splits=["train"], minimum={"accuracy": 0.5})
    assert blessed.properties["blessed"] is True, blessed.properties["reasons"]
    report = json.loads((shared_run_step.store.local(blessed) / "evaluation.json").read_text())
    figures = report["splits"]["train"]["candidate"]
    assert [found["name"] for found in figures["classes"]] == NAMES
    assert np.sum(figures["confusion"]) == figures["rows"] == len(cases["idx"]["splits"]["train"])
    assert np.trace(figures["confusion"]) / figures["rows"] == pytest.approx(figures["accuracy"])
    assert evaluate(guess, minimum={"accuracy": 0.9}).properties["blessed"] is False
    with pytest.raises(StepFailed, match="metric 'auc' is of two classes, and the model tells 4 apart"):
        evaluate(model, metric="auc")
    infra = shared_run_step(
        "airflow_hops.runtime.infra_validate:run",
        params={"requests": 4, "split": "eval"},
        inputs={"model": model, "examples": images},
        kind="infra_blessing",
        launcher=warm_launcher,
    )
    assert infra.properties == {"blessed": True}


def test_figures_of_classes_are_what_their_definitions_say() -> None:
    labels = np.array([0, 0, 1, 2])
    p = np.array([[0.7, 0.2, 0.1], [0.3, 0.6, 0.1], [0.1, 0.8, 0.1], [0.2, 0.2, 0.6]])
    found = class_metrics(labels, p, ("a", "b", "c"))
    assert found.accuracy == 0.75 and found.balanced_accuracy == pytest.approx((0.5 + 1 + 1) / 3)
    assert found.log_loss == pytest.approx(-np.log([0.7, 0.3, 0.8, 0.6]).mean())
    assert found.brier == pytest.approx((0.14 + 0.86 + 0.06 + 0.24) / 4)
    assert found.confusion == ((1, 1, 0), (0, 1, 0), (0, 0, 1))
    assert [(c.name, c.rows, c.recall, c.precision) for c in found.classes] == [
        ("a", 2, 0.5, 1.0),
        ("b", 1, 1.0, 0.5),
        ("c", 1, 1.0, 1.0),
    ]
    # Wilson's interval of 3 in 4.
    assert (found.accuracy_low, found.accuracy_high) == (
        pytest.approx(0.3006, abs=1e-4),
        pytest.approx(0.9544, abs=1e-4),
    )
    nothing = class_metrics(labels[:0], p[:0])
    assert nothing.accuracy is None and nothing.reason == "no rows"
    gain = compare_classifiers("accuracy", labels, p, np.roll(p, 1, axis=1))
    right = (np.roll(p, 1, axis=1).argmax(axis=1) == labels).astype(float)
    assert gain == paired_difference("accuracy", np.array([1.0, 0.0, 1.0, 1.0]) - right)
    assert compare_classifiers("brier", labels[:0], p[:0], p[:0]) is None


def test_the_operator_hands_its_arguments_on_and_knows_when_files_change(tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "one.png").write_bytes(b"1")
    operator = PrepareImagesOperator(
        task_id="images", sources={"train": str(tmp_path)}, height=8, width=9, channels=1, mean=(0.5,)
    )
    given = operator.step_params({})  # type: ignore[typeddict-item]
    assert (given["height"], given["width"], given["channels"], given["mean"], given["scale"]) == (8, 9, 1, [0.5], None)
    assert given["sources"]["train"]["uri"] == str(tmp_path)
    hook: Any = SimpleNamespace()
    before = operator.step_cache_key_parts(hook)
    (tmp_path / "cat" / "two.png").write_bytes(b"2")
    assert operator.step_cache_key_parts(hook) != before
    with pytest.raises(BadInput, match="sources is empty"):
        PrepareImagesOperator(task_id="none", sources={}, height=8, width=8, channels=1)
    with pytest.raises(BadInput, match=r"sources\['train'\] has no field 'image_colum'"):
        ImageSource.from_value("train", {"uri": "/images", "image_colum": "x"})
