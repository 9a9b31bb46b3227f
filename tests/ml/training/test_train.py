"""The train stage: real ranks from transformed examples to a model artifact, and every way in which it may fail."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsspec
import horovod.tensorflow as hvd
import keras
import pyarrow.parquet as pq
import pytest
import tensorflow as tf
import training_functions
import transformed_examples

from airflow_hops.core.artifacts.artifact import MANIFEST_NAME, Artifact, Manifest, RowCounts
from airflow_hops.core.errors import BadInput, HopsError
from airflow_hops.core.store import ArtifactStore
from airflow_hops.core.store.integrity import describe
from airflow_hops.core.store.private_folders import cache_folder
from airflow_hops.core.training.options import TrainingOptions
from airflow_hops.ml.training.checkpoints import (
    Position,
    Snapshot,
    copy_variables,
    load_snapshot,
    restore_variables,
    write_checkpoint,
)
from airflow_hops.ml.training.context import TrainContext
from airflow_hops.ml.training.stage.checkpoint_state import CheckpointState
from airflow_hops.ml.training.stage.keras_export import export_keras
from airflow_hops.ml.training.stage.rank_program import check_outcome
from tests.ml.conftest import Bucket
from tests.ml.training.trainings import Trainings, rank_session, read_events
from tests.ml.world import World


@pytest.fixture(scope="module")
def model(trainings: Trainings, examples: Artifact) -> Any:
    """A training of four epochs that nothing happens to."""
    artifact = trainings("training_functions:train", examples, run_id="uninterrupted", epochs=4)
    folder = trainings.store.local(artifact)
    return SimpleNamespace(
        artifact=artifact,
        folder=folder,
        summary=json.loads((folder / "training.json").read_text()),
        lines=list(trainings.lines),
        progress=list(trainings.progress),
    )


def test_two_ranks_make_a_model_artifact_with_lineage(model: Any, examples: Artifact) -> None:
    artifact = model.artifact
    assert artifact.rows == {"train": RowCounts(1001, 1001), "eval": RowCounts(201, 201)}
    measured = {"train_loss", "train_auc", "eval_loss", "eval_auc", "examples_per_second", "scaling_efficiency"}
    assert measured < set(artifact.metrics)
    assert 0 < artifact.metrics["scaling_efficiency"] < 1
    assert artifact.metrics["eval_auc"] > 0.7
    expected = {
        "features": ["a", "b", "kind"],
        "label": "late",
        "time": "when",
        "signature": "serving_default",
        "statistics": "file:///store/statistics",
        "schema": "file:///store/schema",
        "window": examples.properties["window"],
        "synchronized": True,
    }
    assert {name: artifact.properties[name] for name in expected} == expected
    retained = sorted(path.name for path in (model.folder / "checkpoints").iterdir())
    assert retained == ["step-00000022", "step-00000033", "step-00000044"]
    assert {path.name for path in (model.folder / "logs").iterdir()} == {"rank-0.log", "rank-1.log"}


def test_training_json_describes_the_training(model: Any) -> None:
    summary = model.summary
    assert (summary["ranks"], summary["seed"], summary["params"]) == (2, 0, {"epochs": 4})
    assert [set(epoch) for epoch in summary["epochs"]] == [{"loss", "auc", "val_loss", "val_auc", "seconds"}] * 4
    assert len(set(summary["guard"]["checksums"])) == 4
    assert summary["guard"]["rows"] == [1001] * 4
    assert summary["guard"]["checks"] >= 4 * 6
    assert 0 < summary["guard"]["seconds"] < summary["seconds"]["training"]
    assert summary["synchronized"] is True
    assert 0 < summary["scaling_efficiency"] < 1
    assert summary["rows_by_rank"] == [{"train": 500, "eval": 100}, {"train": 501, "eval": 101}]
    assert 0 <= summary["model"]["largest_difference"] < 1e-5
    assert summary["versions"]["horovod"] == "0.28.1"


def test_progress_and_metrics_stream_to_the_task_log(model: Any) -> None:
    assert [progress for progress, _, _ in model.progress] == [0.25, 0.5, 0.75, 1.0]
    assert model.progress[0][1] == "epoch 1 of 4"
    assert {"loss", "auc", "val_loss", "val_auc", "examples_per_second"} == set(model.progress[0][2])
    assert "step 7 gradient_norm=0.25" in model.lines


def test_model_serves_raw_features(model: Any) -> None:
    signature = tf.saved_model.load(str(model.folder / "saved_model")).signatures["serving_default"]
    a, b = tf.constant([-3.0, 0.0, 3.0]), tf.constant([-1.0, 0.0, 1.0])
    low, middle, high = signature(a=a, b=b, kind=tf.constant([0, 1, 4], tf.int64))["probability"].numpy()
    assert low < middle < high
    events = read_events(model.folder)
    expected = [(epoch, pytest.approx(metrics["val_auc"])) for epoch, metrics in enumerate(model.summary["epochs"], 1)]
    assert events["validation/auc"] == expected
    assert events["train/gradient_norm"] == [(7, 0.25)]
    assert [step for step, _ in events["train/loss"]] == [1, 2, 3, 4]


def test_slow_store_or_export_does_not_stall_ranks(trainings: Trainings, examples: Artifact) -> None:
    artifact = trainings(
        "training_functions:train",
        examples,
        stage=training_functions.train_with_a_slow_store,
        epochs=3,
        np=1,
        seed=4,
        stall_timeout_s=4,
    )
    summary = json.loads((trainings.store.local(artifact) / "training.json").read_text())
    assert len(summary["epochs"]) == 3
    assert (summary["ranks"], summary["seed"]) == (1, 4)
    assert summary["rows_by_rank"] == [{"train": 1001, "eval": 201}]


def test_checkpoints_on_an_object_store_survive_a_try(make_context: Any, tmp_path: Path) -> None:
    state, of_other_params = (
        CheckpointState.of(make_context(kind="model", run_id="run", params=params).spec, ArtifactStore("memory://hops"))
        for params in ({"seed": 1}, {"seed": 2})
    )
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    assert state.fetch(tmp_path / "before") is None
    for epochs in (1, 2):
        history = tuple({"loss": 1.0 / epoch} for epoch in range(1, epochs + 1))
        snapshot = Snapshot(Position(step=7 * epochs, epoch=epochs), copy_variables(model), history=history)
        state.publish(write_checkpoint(tmp_path / "local", snapshot, keep=3))
    assert of_other_params.fetch(tmp_path / "other params") is None
    fetched = state.fetch(tmp_path / "fetched")
    assert fetched is not None
    assert (fetched.position.epoch, fetched.history) == (2, ({"loss": 1.0}, {"loss": 0.5}))
    other = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    other.compile("adam", "mse")
    with pytest.raises(BadInput, match=r"variable 'kernel' has shape \(2, 1\) there and \(3, 1\) in the model"):
        restore_variables(load_snapshot(fetched), other)
    memory = fsspec.filesystem("memory")
    (stored,) = (path for path in memory.find("/") if "step-00000014/variables.npz" in path)
    memory.pipe_file(stored, memory.cat_file(stored)[:-100])
    state_found = state.fetch(tmp_path / "damaged")
    assert state_found is not None
    assert (state_found.position.epoch, state_found.history) == (1, ({"loss": 1.0},))
    memory.pipe_file(stored.replace("variables.npz", "checkpoint.json"), b'{"epochs": 2, "history": []}')
    with pytest.raises(BadInput, match="a checkpoint of format 1, written by airflow-hops an earlier version"):
        state.fetch(tmp_path / "other")
    state.clear()
    assert state.fetch(tmp_path / "after") is None


def test_error_in_a_rank_leaves_no_artifact(trainings: Trainings, examples: Artifact) -> None:
    with pytest.raises(BadInput, match="the loss is nan at step 1 of epoch 3") as failure:
        trainings("training_functions:train", examples, poison_after=2, np=1)
    assert "The checkpoint after epoch 2 (step 22) is kept in" in str(failure.value)


UNUSABLE: dict[str, tuple[Callable[[TrainContext], Any], dict[str, Any], list[str]]] = {
    "mixes rows": (
        training_functions.train_on_statistics_of_batches,
        {},
        [
            "the exported model (saved_model) answers row",
            "with nan alone, and with 0.",
            "in one of 100. A server is asked for single rows",
        ],
    ),
    "random": (
        training_functions.train_with_monte_carlo_dropout,
        {},
        ["when it is asked again, and with", "A served model must not be random: turn Dropout"],
    ),
    "table": (
        training_functions.train_with_tables,
        {"untracked": True},
        ["the model uses a table or variable that is not an attribute of any of its layers"],
    ),
    "split": (training_functions.read_another_split, {}, ["there is no split 'test' among the transformed examples"]),
}


def _export_all(examples: Path, folder: Path) -> tuple[float, dict[str, str]]:
    """Trains and exports in this process; the difference of a usable model, and the messages of errors."""
    hvd.init()

    def export(function: Callable[[TrainContext], Any], name: str, **params: Any) -> Any:
        session = rank_session(examples, folder / name, params=params)
        return export_keras(function(TrainContext(session)), session)

    errors = {}
    for name, (function, params, _) in UNUSABLE.items():
        with pytest.raises(BadInput) as failure:
            export(function, name, **params)
        errors[name] = str(failure.value)
    return export(training_functions.train_with_tables, "usable")["largest_difference"], errors


def test_unusable_models_are_not_exported(
    own_process: Any, trainings: Trainings, examples: Artifact, tmp_path: Path
) -> None:
    difference, errors = own_process(_export_all, trainings.store.local(examples), tmp_path)
    assert difference < 1e-5
    for name, (_, _, expected) in UNUSABLE.items():
        assert [part for part in expected if part not in errors[name]] == []


@pytest.mark.parametrize(
    ("returned", "words"),
    [(None, "returned builtins.NoneType, expected a keras.Model"), ({"a": 1}, "returned builtins.dict, expected")],
)
def test_other_results_than_models_are_refused(returned: Any, words: str, tmp_path: Path) -> None:
    options = TrainingOptions(train="training_functions:return_nothing")
    with pytest.raises(BadInput, match=words):
        check_outcome(options, returned, tmp_path, 0)


def _as_if_written_so(folder: Path, manifest: Manifest) -> Artifact:
    """The artifact in a folder whose files a faulty step wrote as they are."""
    (folder / MANIFEST_NAME).unlink()
    manifest = replace(manifest, files=tuple(describe(folder)))
    (folder / MANIFEST_NAME).write_text(manifest.to_json())
    return manifest.reference(folder.as_uri())


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        ("corrupt", "part-00001.parquet: cannot be read"),
        ("few", "split 'train' holds 1 rows, fewer than the 2 ranks"),
        ("features", "features.json: the file does not exist"),
        ("lost", "split 'train' holds 998 rows, but its manifest says 1001"),
    ],
)
def test_unusable_examples_are_named(trainings: Trainings, examples: Artifact, damage: str, expected: str) -> None:
    folder = trainings.store.local(examples)
    target = folder.parent.parent / f"damaged-{damage}" / folder.name
    shutil.copytree(folder, target)
    files = sorted((target / "train").iterdir())
    if damage == "corrupt":
        files[1].write_bytes(files[1].read_bytes()[:-20])
    elif damage == "few":
        files[0].unlink()
        files[2].unlink()
        pq.write_table(pq.read_table(files[1]).slice(0, 1), files[1])
    elif damage == "features":
        (target / "features.json").unlink()
    else:
        files[1].unlink()
    damaged = _as_if_written_so(target, trainings.store.manifest(examples.uri))
    with pytest.raises(BadInput, match=expected):
        trainings("training_functions:train", damaged, epochs=1)


def test_rank_killed_for_memory_is_named(trainings: Trainings, examples: Artifact, small_memory: Path) -> None:
    with pytest.raises(HopsError, match=r"rank 1 of 2 on .*SIGKILL \(the kernel's out-of-memory killer") as failure:
        trainings("training_functions:outgrow", examples, group=str(small_memory))
    assert failure.value.retryable


@pytest.mark.parametrize("left_kib", [8, 72])
def test_full_store_leaves_no_artifact(trainings: Trainings, tmp_path: Path, small_folder: Path, left_kib: int) -> None:
    store, rows = ArtifactStore(str(small_folder)), {"train": [100], "eval": [50]}
    examples = World(tmp_path, store).run(transformed_examples.write, kind="transformed_examples", rows=rows)
    (small_folder / "filler").write_bytes(bytes(shutil.disk_usage(small_folder).free - left_kib * 1024))
    small = replace(trainings, store=store)
    with pytest.raises(HopsError, match=r"[Nn]o space left on") as failure:
        small("training_functions:train", examples, epochs=1, np=1)
    assert failure.value.retryable


def test_cost_has_seconds_of_gpus(world: World) -> None:
    context = world.context()
    context.used_gpus([[{"name": "NVIDIA H200"}], [{"name": "NVIDIA H200"}, {"name": ""}]], 2.5)
    context.used_gpus([], 7.0)
    cost = context.cost()
    assert cost.pop("core_s") >= 0
    assert cost == {"gpu_s": 7.5}
    assert world.context().cost()["gpu_s"] == 0.0


def test_ranks_read_remote_splits(
    bucket: Bucket, own_process: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOPS_LOCAL_CACHE", str(tmp_path / "cache"))
    store = ArtifactStore(f"{bucket.url}/flights", storage_options=bucket.options)
    rows = {"train": [200, 3, 98], "eval": [60]}
    examples = World(tmp_path, store).run(transformed_examples.write, kind="transformed_examples", rows=rows)
    model = Trainings(store, tmp_path, own_process)("training_functions:train", examples, epochs=1, np=2)
    assert {split: counts.rows_out for split, counts in model.rows.items()} == {"train": 301, "eval": 60}
    downloaded = {path.name for path in (tmp_path / "cache").rglob("*.parquet")}
    assert downloaded == set(), "the step has downloaded splits"
    fetched = [path for path in (cache_folder() / "files").iterdir() if not path.name.startswith(".")]
    assert len(fetched) == 4
