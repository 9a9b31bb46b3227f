"""Trainings on a GPU: who sees which, PyTorch over NCCL, JAX, mixed precision, feeding, and resuming."""

from __future__ import annotations

import importlib.util
import os
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import ON_CPU, ROWS

from airflow_hops.core.errors import HopsError, Preempted
from airflow_hops.core.training.options import SINGLE
from airflow_hops.ml.training.checkpoints import read_checkpoint
from airflow_hops.ml.training.devices import Gpu, get_gpus
from airflow_hops.ml.training.gang import Channel, LocalRanks, Placement, run_gang
from airflow_hops.ml.training.gang.leases import FOLDER_VARIABLE, GpuLeases

HAS_TORCH = importlib.util.find_spec("torch") is not None
HAS_JAX = importlib.util.find_spec("jax") is not None
needs_torch = pytest.mark.skipif(not HAS_TORCH, reason="PyTorch is not installed")
needs_jax = pytest.mark.skipif(not HAS_JAX, reason="there is no JAX")
needs_gpu = pytest.mark.skipif(ON_CPU, reason="needs a GPU")
DEVICE = "cpu" if ON_CPU else "cuda"


def devices_of_rank(placement: Placement, channel: Channel) -> dict[str, Any]:
    """Returns the GPUs of a rank: by its environment, and by PyTorch."""
    import torch

    uuids = [str(torch.cuda.get_device_properties(i).uuid) for i in range(torch.cuda.device_count())]
    return {"variable": os.environ["CUDA_VISIBLE_DEVICES"], "ids": [gpu.id for gpu in get_gpus()], "torch": uuids}


@pytest.fixture(autouse=True)
def leases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "leases"))


@needs_gpu
@needs_torch
def test_each_rank_sees_one_gpu(gpus: list[Gpu], tmp_path: Path) -> None:
    seen = run_gang(devices_of_rank, len(gpus), logs=tmp_path / "logs", launcher=LocalRanks())
    assert [each["variable"] for each in seen] == [gpu.id for gpu in gpus]
    assert [each["ids"] for each in seen] == [[gpu.id] for gpu in gpus]
    assert [[f"GPU-{uuid}" for uuid in each["torch"]] for each in seen] == [[gpu.id] for gpu in gpus]


@needs_gpu
@needs_torch
def test_second_training_fails_without_a_free_gpu(gpus: list[Gpu], tmp_path: Path) -> None:
    first = GpuLeases(gpus, len(gpus), "first training")
    run = partial(run_gang, devices_of_rank, 1, logs=tmp_path / "logs", launcher=LocalRanks())
    with pytest.raises(HopsError, match="first training"):
        run()
    first.release()
    assert len(run()) == 1


@needs_torch
def test_torch_ranks_train(train: Any, figure: Any, gpus: list[Gpu], capfd: pytest.CaptureFixture[str]) -> None:
    summary = train("network", params={"epochs": 2})
    backend = "cpu:gloo" if ON_CPU else "cuda:cpu:gloo,cuda:nccl"
    assert f"backend {backend}\n" in capfd.readouterr().out
    reports = [message["metrics"] for message in summary["messages"] if message["type"] == "report"]
    assert reports[1]["loss"] < reports[0]["loss"] < 0.7
    assert reports[1]["rows"] * len(gpus) == 2 * ROWS["train"]
    assert summary["synchronized"]
    assert summary["model"]["format"] == "onnx"
    assert summary["model"]["largest_difference"] < 1e-3
    figure("rows per second, float32, Parquet to the step", f"{reports[1]['rows_per_second']:,.0f}")
    figure("share of the time that the step waits for rows", f"{reports[1]['waited']:.3f}")
    if not ON_CPU:
        usage = summary["gpu_usage"][0][0]
        assert usage["name"] == gpus[0].name
        assert usage["peak_memory_bytes"] > 100 << 20
        assert 0 < usage["utilization"] <= 1
        figure("peak memory of the GPU", f"{usage['peak_memory_bytes'] / 2**30:.2f} GiB")
        figure("mean utilization of the GPU", f"{usage['utilization']:.2f}")


@needs_torch
def test_mixed_precision_trains_to_the_same_loss(train: Any, figure: Any) -> None:
    losses = {}
    for name, amp in {"float32": False, "bfloat16": True}.items():
        summary = train("network", name=name, params={"amp": amp, "width": 8192})
        (report,) = (message["metrics"] for message in summary["messages"] if message["type"] == "report")
        losses[name] = report["loss"]
        usage = summary["gpu_usage"][0] or [{"utilization": None}]
        figure(
            f"layers of 8,192, {name}: rows per second, share of waiting, utilization of the GPU",
            f"{report['rows_per_second']:,.0f}, {report['waited']:.3f}, {usage[0]['utilization']}",
        )
    assert losses["bfloat16"] == pytest.approx(losses["float32"], abs=0.02)


@needs_torch
@pytest.mark.parametrize(
    ("ended", "error", "message"),
    [("dies_at", HopsError, "SIGKILL"), ("noticed_at", Preempted, "all ranks have end")],
)
def test_resumed_training_ends_with_the_same_weights(
    train: Any, tmp_path: Path, gpus: list[Gpu], ended: str, error: type[HopsError], message: str
) -> None:
    options: dict[str, Any] = {"np": 1 if ended == "dies_at" else 2 if ON_CPU else len(gpus)}
    whole = train("network", name="whole", **options)
    options["params"] = {ended: 2}
    with pytest.raises(error, match=message):
        train("network", name="ended", **options)
    (checkpoint,) = (tmp_path / "ended" / "checkpoints").glob("*")
    resumed = train("network", name="resumed", resume_from=checkpoint, **options)
    assert resumed["checksum"] == whole["checksum"]
    step = read_checkpoint(checkpoint).position.step
    assert resumed["resumed_at_step"] == step and (step == 2 if ended == "dies_at" else step >= 2)


@needs_torch
@pytest.mark.skipif(importlib.util.find_spec("keras") is None, reason="there is no Keras")
def test_keras_trains_on_torch(train: Any, capfd: pytest.CaptureFixture[str]) -> None:
    summary = train("keras_on_torch", np=1, env={"KERAS_BACKEND": "torch"})
    assert f"device {DEVICE}\n" in capfd.readouterr().out
    (report,) = (message["metrics"] for message in summary["messages"] if message["type"] == "report")
    assert report["last"] < report["first"]
    assert summary["model"]["largest_difference"] < 1e-3


@needs_jax
def test_jax_trains_on_batches_of_the_reader(train: Any) -> None:
    value = train("on_jax", np=1, strategy=SINGLE, any_value=True)["value"]
    assert set(value["devices"]) == {"cpu" if ON_CPU else "gpu"}
    assert value["last"] < value["first"] == pytest.approx(np.log(2), rel=1e-3)


@needs_jax
@pytest.mark.skipif(importlib.util.find_spec("keras") is None, reason="there is no Keras")
def test_keras_trains_on_jax(train: Any) -> None:
    value = train("keras_on_jax", np=1, strategy=SINGLE, any_value=True, env={"KERAS_BACKEND": "jax"})["value"]
    assert (value["backend"], set(value["devices"])) == ("jax", {"cpu" if ON_CPU else "gpu"})
    assert value["last"] < value["first"]
