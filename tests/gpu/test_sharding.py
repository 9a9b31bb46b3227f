"""Models in shards: memory, losses, checkpoints, export. Two ranks on the CPU or on two GPUs."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest
from conftest import ON_CPU

from airflow_hops.core.contract.artifacts import BadInput, Preempted
from airflow_hops.ml.training.devices import Gpu

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")


@pytest.fixture(autouse=True)
def two_devices(gpus: list[Gpu]) -> None:
    if not ON_CPU and len(gpus) < 2:
        pytest.skip("needs two GPUs")


def losses(summary: Any) -> list[float]:
    reports = [message["metrics"] for message in summary["messages"] if message["type"] == "report"]
    return [metrics["loss"] for metrics in reports if "loss" in metrics]


def test_shards_need_half_the_memory_and_learn_the_same(
    train: Any, figure: Any, capfd: pytest.CaptureFixture[str]
) -> None:
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


def test_preempted_shards_end_with_the_same_weights(train: Any, tmp_path: Path) -> None:
    options: dict[str, Any] = {"np": 2, "strategy": "fsdp", "export": False}
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
    with pytest.raises(BadInput, match=r"holds all of the parameter '0.weight'; call torch.distributed.fsdp"):
        train("deep", name="whole on two", params={"sharded": False, "width": 16}, **options)
    with pytest.raises(BadInput, match=r"returned builtins.dict, expected .* torch"):
        train("no_module", params={}, **options)
