"""Ranks of PyTorch with different speeds: their rows, the weights of their losses, and resuming. Needs two ranks."""

from __future__ import annotations

import importlib.util
import json
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from balanced_batches import Batches, descend, read_batches
from conftest import ON_CPU

from airflow_hops.core.errors import BadInput, HopsError
from airflow_hops.ml.training.checkpoints import read_checkpoint
from airflow_hops.ml.training.devices import get_gpus

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")
needs_gpu = pytest.mark.skipif(ON_CPU, reason="needs a GPU")
needs_two = pytest.mark.skipif(not ON_CPU and len(get_gpus()) < 2, reason="needs two GPUs")
ROWS, BATCH, EPOCHS, RATE = 991, 40, 4, 0.5
STEPS = -(-ROWS // BATCH)
FAST_S, SLOW_S = 1e-3, 3e-3


@pytest.fixture(scope="session")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Examples of two numbers, in files of different sizes."""
    folder, random = tmp_path_factory.mktemp("balanced"), np.random.default_rng(7)
    for split, files in {"train": [601, 390], "eval": [80]}.items():
        (folder / split).mkdir()
        for number, rows in enumerate(files):
            values = random.normal(size=(rows, 2)).astype("float32")
            late = (values @ [1.0, -2.0] + random.normal(size=rows) > 0.3).astype("int64")
            table = pa.table({"a": values[:, 0], "b": values[:, 1], "late": late, "key": np.arange(rows)})
            pq.write_table(table, folder / split / f"part-{number}.parquet", row_group_size=70)
    return folder


@pytest.fixture
def balanced(train: Any, tmp_path: Path) -> Any:
    """Trains on two ranks, of which the second has a third of the speed."""

    def run(name: str, resume_from: Path | None = None, np: int = 2, **options: Any) -> Any:
        settings = {key: options.pop(key) for key in ("strategy", "deterministic") & options.keys()}
        times = [FAST_S, SLOW_S, FAST_S]
        params = {"notes": str(tmp_path), "batch": BATCH, "epochs": EPOCHS, "row_s": times, **options}
        return train(
            "speed_functions:balanced",
            name=name,
            np=np,
            resume_from=resume_from,
            params=params,
            export=False,
            **settings,
        )

    return run


def check(notes: Path) -> Batches:
    """Compares a training with one of NumPy on all ranks' rows of each step."""
    batches, state = read_batches(notes, steps=STEPS, rows=ROWS), json.loads((notes / "state").read_text())
    assert len(batches) == EPOCHS * STEPS
    trained = np.array([*state["weight"][0], *state["bias"]])
    assert trained == pytest.approx(descend(batches, RATE, EPOCHS * STEPS)[0], rel=1e-4)
    assert trained != pytest.approx(descend(batches, RATE, 0)[0], rel=1e-3), "weights make a difference"
    return batches


@needs_two
def test_slow_rank_gets_fewer_rows(balanced: Any, tmp_path: Path) -> None:
    summary = balanced("whole")
    batches = check(tmp_path)
    shares = {1: (496, 495)} | {each["from_epoch"]: tuple(each["rows"]) for each in summary["shares"]}
    assert 0.6 < shares[2][0] / ROWS < 0.8, "three quarters by the time of a row"
    (first, *_) = [message["text"] for message in summary["messages"] if message["type"] == "shares"]
    assert first.startswith(f"from epoch 2 on, rank 1 takes {shares[2][1] / ROWS:.0%} of the rows (it has 0.")
    slowest = [message for message in summary["messages"] if message["type"] == "slowest"]
    assert [message["epoch"] for message in slowest] == [1, 2, 3, 4]
    assert summary["slowest"][0]["rank"] == 1 and summary["slowest"][0]["times"] > 1.5
    for epoch, message in enumerate(slowest):
        rows = np.sum([[len(rank[0]) for rank in ranks] for ranks in batches[epoch * STEPS :][:STEPS]], axis=0)
        assert rows.tolist() == [rank["row_count"] for rank in message["ranks"]]
        assert sorted(rows) == sorted(shares[max(each for each in shares if each <= epoch + 1)])
        slow, fast = rows[1] * SLOW_S, rows[0] * FAST_S
        assert message["ranks"][0]["computing"] > fast and message["ranks"][1]["computing"] > slow
    assert slowest[0]["ranks"][0]["exchange"] > 0.5 * (SLOW_S - FAST_S) * ROWS / 2 > slowest[3]["ranks"][0]["exchange"]
    assert summary["examples_per_second"] > 0 and summary["synchronized"]


@needs_two
@pytest.mark.parametrize(("ranks", "number"), [(2, signal.SIGKILL), (3, signal.SIGTERM)])
def test_balanced_epoch_is_resumed(balanced: Any, tmp_path: Path, ranks: int, number: int) -> None:
    how = {"every": 4, "signal": int(number), "at": 2 * STEPS + 4}
    with pytest.raises(HopsError):
        balanced("ended", **how)
    checkpoint = max((tmp_path / "ended" / "checkpoints").glob("step-*"))
    position = read_checkpoint(checkpoint).position
    assert position.epoch == 2 and position.batch > 0 and len(position.rows_by_rank(2)) == 2
    with pytest.raises(BadInput, match=r"first_step is \d+, but the checkpoint after step \d+ of epoch 3 .* unequal"):
        balanced("forgotten", resume_from=checkpoint, forgets=True, **how)
    summary = balanced("resumed", resume_from=checkpoint, np=ranks, **how)
    assert summary["resumed_at_step"] == position.step and summary["ranks"] == ranks
    assert {len(each) for each in check(tmp_path)} == {2, ranks}


@pytest.mark.parametrize(
    ("message", "options"),
    [
        (
            "the model is a Slow, expected the model within torch.nn.parallel",
            {"model": "plain"},
        ),
        ("BalancedBatches has the model Linear, which exchanged no gradients in 25 steps", {"model": "untrained"}),
        ("shares by speed and deterministic are set", {"deterministic": True}),
        ("the strategy is 'fsdp'; set strategy='torch'", {"strategy": "fsdp"}),
        ("the strategy is 'single'; set strategy='torch'", {"strategy": "single"}),
        pytest.param(r"the model has SyncBatchNorm \('module.1'\)", {"model": "synchronized"}, marks=needs_gpu),
    ],
)
def test_unsuitable_training_is_refused(balanced: Any, message: str, options: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match=message):
        balanced("refused", np=1, row_s=[0], **options)


@needs_two
def test_documented_loop_trains(train: Any) -> None:
    summary = train("speed_functions:documented", name="documented", np=2)
    assert summary["synchronized"] and summary["model"]["format"] == "onnx"
    assert [message["epoch"] for message in summary["messages"] if message["type"] == "slowest"] == [*range(1, 11)]
    assert summary["examples_per_second"] > 0
