"""Models in shards: memory, losses, checkpoints, export. Two ranks on the CPU or on two GPUs; on one GPU, one rank."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest
from conftest import ON_CPU

from airflow_hops.core.errors import BadInput, Preempted
from airflow_hops.ml.training.devices import Gpu

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")


@pytest.fixture
def ranks(gpus: list[Gpu]) -> int:
    return 2 if ON_CPU else min(2, len(gpus))


def losses(summary: Any) -> list[float]:
    reports = [message["metrics"] for message in summary["messages"] if message["type"] == "report"]
    return [metrics["loss"] for metrics in reports if "loss" in metrics]


def test_shards_need_half_the_memory_and_learn_the_same(
    train: Any, figure: Any, ranks: int, capfd: pytest.CaptureFixture[str]
) -> None:
    if ranks < 2:
        pytest.skip("needs two GPUs")
    memory, summaries = {}, {}
    for name, np, strategy in [("whole", 1, "torch"), ("sharded", 2, "fsdp")]:
        options = {"np": np, "strategy": strategy, "export": np == 2, "params": {"sharded": np == 2}}
        summaries[name] = train("deep", name=name, **options)
        memory[name] = max(float(each) for each in re.findall(r"took ([\d.]+) MiB", capfd.readouterr().out))
    figure("memory of one rank, and of each of two that share the model", f"{memory} MiB")
    assert losses(summaries["sharded"]) == pytest.approx(losses(summaries["whole"]), rel=1e-5)
    assert summaries["sharded"]["synchronized"]
    assert summaries["sharded"]["model"]["largest_difference"] < 1e-3
    if ON_CPU:
        assert memory["sharded"] <= 0.6 * memory["whole"]


def test_preempted_shards_end_with_the_same_weights(train: Any, ranks: int, tmp_path: Path) -> None:
    options: dict[str, Any] = {"np": ranks, "strategy": "fsdp", "export": False}
    params = {"sharded": True, "width": 16}
    whole = train("deep", name="whole", params=params, **options)
    with pytest.raises(Preempted, match="all ranks have ended"):
        train("deep", name="noticed", params={**params, "noticed": True}, **options)
    (checkpoint,) = (tmp_path / "noticed" / "checkpoints").glob("step-*")
    resumed = train("deep", name="resumed", params=params, resume_from=checkpoint, **options)
    assert (resumed["checksum"], losses(resumed)) == (whole["checksum"], losses(whole)[-len(losses(resumed)) :])
    with pytest.raises(BadInput, match=r"a checkpoint of strategy 'fsdp', and the training has 'torch'"):
        train("deep", name="torch", np=1, params={"sharded": False}, resume_from=checkpoint)
    with pytest.raises(BadInput, match=r"the checkpoint is of another model \(Size mismatch"):
        train("deep", name="wider", params={**params, "width": 32}, resume_from=checkpoint, **options)
    with pytest.raises(BadInput, match=r"returned builtins.dict, expected .* torch"):
        train("no_module", params={}, **options)
    exported = train("deep", name="exported", params=params, **{**options, "export": True})
    assert exported["checksum"] == whole["checksum"]
    assert exported["model"]["largest_difference"] < 1e-3
    if ranks > 1:
        with pytest.raises(BadInput, match=r"holds all of the parameter '0.weight'; call torch.distributed.fsdp"):
            train("deep", name="whole on two", params={"sharded": False, "width": 16}, **options)


def test_resumed_ranks_have_the_random_numbers_and_buffers_of_undisturbed_ones(
    train: Any, ranks: int, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"np": ranks, "strategy": "torch", "export": False}
    whole = train("noisy", name="whole", **options)
    with pytest.raises(Preempted, match="all ranks have ended"):
        train("noisy", name="noticed", params={"noticed": True}, **options)
    (checkpoint,) = (tmp_path / "noticed" / "checkpoints").glob("step-*")
    resumed = train("noisy", name="resumed", resume_from=checkpoint, **options)
    assert resumed["checksum"] == whole["checksum"]
