"""TensorFlow's own strategies on the ranks: mirrored workers, and parameter servers."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.errors import BadInput
from airflow_hops.ml.training.context import TrainContext
from tests.ml.training.trainings import Trainings

WHERE = {"kind": "local", "slots": 4}


def _compiled(tf: Any, seed: int) -> Any:
    tf.keras.utils.set_random_seed(seed)
    numeric = tf.keras.Input((2,), name="numeric")
    kind = tf.keras.Input((), dtype=tf.int64, name="kind_id")
    every = tf.keras.layers.Concatenate()([numeric, tf.keras.layers.Embedding(5, 2)(kind)])
    model = tf.keras.Model({"numeric": numeric, "kind_id": kind}, tf.keras.layers.Dense(1, activation="sigmoid")(every))
    model.compile(tf.keras.optimizers.SGD(0.5), "binary_crossentropy")
    return model


def mirrored(context: TrainContext) -> Any:
    """Workers that mirror one model; each says what it found."""
    import tensorflow as tf

    steps = context.steps("train", 100)
    with context.strategy.scope():
        model = _compiled(tf, seed=7)
    rows = context.strategy.distribute_datasets_from_function(
        lambda _: context.examples("train", 100, shuffle=True, repeat=True)
    )
    model.fit(rows, epochs=1, steps_per_epoch=steps, verbose=0)
    print(f"TF_CONFIG {os.environ['TF_CONFIG']} replicas {context.strategy.num_replicas_in_sync}", flush=True)
    return model


def apart(context: TrainContext) -> Any:
    """Forgets the scope: each worker trains a model of its own."""
    import tensorflow as tf

    model = _compiled(tf, seed=context.rank)
    return model


def with_parameter_servers(context: TrainContext) -> Any:
    """The chief's side: variables lie on the parameter server, and workers read what they train on themselves."""
    import tensorflow as tf

    with context.strategy.scope():
        model = _compiled(tf, seed=7)

    def rows(_: Any) -> Any:
        numeric = tf.random.stateless_normal((256, 2), (1, 2))
        features = {"numeric": numeric, "kind_id": tf.zeros((256,), tf.int64)}
        labels = tf.cast(numeric[:, 0] > 0, tf.float32)
        return tf.data.Dataset.from_tensor_slices((features, labels)).repeat().batch(32)

    history = model.fit(
        tf.keras.utils.experimental.DatasetCreator(rows), epochs=2, steps_per_epoch=10, verbose=0
    ).history["loss"]
    devices = sorted({variable.device for variable in model.trainable_variables})
    gpus = os.environ["CUDA_VISIBLE_DEVICES"]
    print("FOUND " + json.dumps({"loss": history, "devices": devices, "gpus": gpus}), flush=True)
    print(f"TF_CONFIG {os.environ['TF_CONFIG']}", flush=True)
    return model


@pytest.fixture(scope="module")
def train(trainings: Trainings, write_examples: Any) -> Callable[..., tuple[Artifact, Path]]:
    examples = write_examples(train=[300, 101], eval=[100])

    def train(function: str, **params: Any) -> tuple[Artifact, Path]:
        model = trainings(f"test_tensorflow_cluster:{function}", examples, **{"where": WHERE, **params})
        return model, trainings.store.local(model)

    return train


def _config(folder: Path, rank: int) -> dict[str, Any]:
    match = re.search(r"TF_CONFIG (\{.*\})", (folder / "logs" / f"rank-{rank}.log").read_text())
    assert match is not None
    config: dict[str, Any] = json.loads(match[1])
    return config


def test_mirrored_workers_end_with_equal_weights_and_a_model(train: Any) -> None:
    model, folder = train("mirrored", np=2, strategy="multi_worker_mirrored")
    assert model.properties["synchronized"] is True
    assert (folder / "saved_model" / "saved_model.pb").exists()
    configs = [_config(folder, rank) for rank in (0, 1)]
    assert configs[0]["cluster"] == configs[1]["cluster"]
    assert len(set(configs[0]["cluster"]["worker"])) == 2
    assert [config["task"] for config in configs] == [{"type": "worker", "index": rank} for rank in (0, 1)]
    for rank in (0, 1):
        assert "replicas 2" in (folder / "logs" / f"rank-{rank}.log").read_text()
    training = json.loads((folder / "training.json").read_text())
    assert (training["strategy"], training["ranks"]) == ("multi_worker_mirrored", 2)
    assert sum(rank["train"] for rank in training["rows_by_rank"]) == 401


def test_missing_strategy_scope_is_reported(train: Any) -> None:
    with pytest.raises(BadInput, match=r"models differ at the end of training in weight .*context\.strategy\.scope"):
        train("apart", np=2, strategy="multi_worker_mirrored")


def test_parameter_servers_need_no_gpu(train: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOPS_GPU_LEASES", str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a,GPU-b")
    model, folder = train("with_parameter_servers", np=2, strategy="parameter_server", parameter_servers=1, where=None)
    assert {path.name for path in tmp_path.iterdir()} == {"GPU-a.lock", "GPU-b.lock"}
    log = (folder / "logs" / "rank-0.log").read_text()
    result = json.loads(log.partition("FOUND ")[2].partition("\n")[0])
    assert result["gpus"] == ""
    assert all("/job:ps/" in device for device in result["devices"])
    assert result["loss"][-1] < result["loss"][0]
    cluster = _config(folder, 0)["cluster"]
    assert {kind: len(addresses) for kind, addresses in cluster.items()} == {"chief": 1, "worker": 2, "ps": 1}
    assert (folder / "saved_model" / "saved_model.pb").exists()
    assert model.properties["synchronized"] is True
    assert {path.name for path in (folder / "logs").iterdir()} == {f"rank-{rank}.log" for rank in range(4)}


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({"strategy": "parameter_server"}, "parameter_servers is 0, expected 1 or more"),
        ({"strategy": "parameter_server", "parameter_servers": 1, "np": 4}, "np is 6, but there are only 4 slots"),
    ],
)
def test_contradictory_arguments_are_bad_input(train: Any, params: dict[str, Any], expected: str) -> None:
    with pytest.raises(BadInput, match=expected):
        train("mirrored", **params)
