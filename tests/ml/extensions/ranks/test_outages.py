"""Trainings of two hosts between which the network fails: real packets that a switch drops, and reset connections."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from airflow_hops.core.errors import HopsError
from airflow_hops.core.processes.causes import cause_of
from airflow_hops.core.store import ArtifactStore
from airflow_hops.core.training.options import TrainingOptions
from airflow_hops.ml.training.gang import LocalRanks
from airflow_hops.ml.training.stage import Training, train_model
from tests.extensions.ranks.ssh_servers import TESTS
from tests.ml.extensions.ranks.networks import Network, network, why_not

pytestmark = [
    pytest.mark.scheduled(part="clusters"),
    pytest.mark.skipif(bool(why_not()), reason=f"no network namespaces: {why_not()}"),
]

CODE = (str(TESTS.parents[1] / "steps"), str(TESTS.parents[1] / "extensions" / "torch"))
OUTAGE_S = 13.0
"""An outage after which TCP repeats packets only at 25 s, when agents used to have given up."""


def options(strategy: str, stall_timeout_s: float = 60.0) -> TrainingOptions:
    functions = {"horovod": "training_functions:train", "torch": "torch_functions:train"}
    params = {"epochs": 6} if strategy == "horovod" else {"step_s": 0.2}
    return TrainingOptions(
        train=functions[strategy], params=params, strategy=strategy, deterministic=True, stall_timeout_s=stall_timeout_s
    )


def train(
    examples: Path, folder: Path, settings: TrainingOptions, outage: Callable[[Network], None] | None
) -> tuple[dict[str, Any], float]:
    """Trains, on two hosts if there is an outage, which begins after a first report; summary, and seconds from then."""
    output = folder / "output"
    output.mkdir()
    training = partial(Training, settings, examples, output, code_paths=CODE)
    sys.path[:0] = CODE
    if outage is None:
        return train_model(training(launcher=LocalRanks(2))), 0.0
    with network(folder) as hosts:
        began: list[float] = []

        def on_message(rank: int, message: Mapping[str, Any]) -> None:
            if message["type"] == ("checkpoint" if settings.strategy == "horovod" else "report") and not began:
                outage(hosts)
                began.append(time.monotonic())

        summary = train_model(training(launcher=hosts.ranks), on_message=on_message)
        return summary, time.monotonic() - began[0]


def cut_off_for_a_while(hosts: Network) -> None:
    hosts.cut_off_south(True)
    threading.Timer(OUTAGE_S, hosts.cut_off_south, (False,)).start()


@pytest.fixture(scope="module")
def examples(shared_store: ArtifactStore, write_examples: Any) -> Path:
    return shared_store.local(write_examples(train=[700, 3, 298], eval=[201]))


NEEDS_TORCH = pytest.mark.skipif(find_spec("torch") is None, reason="there is no PyTorch in this environment")


@pytest.mark.parametrize("strategy", ["horovod", pytest.param("torch", marks=NEEDS_TORCH)])
def test_outage_is_survived(own_process: Any, examples: Path, tmp_path: Path, strategy: str) -> None:
    folders = [tmp_path / name for name in ("undisturbed", "disturbed")]
    for folder in folders:
        folder.mkdir()
    undisturbed, _ = own_process(train, examples, folders[0], options(strategy), None)
    disturbed, seconds = own_process(train, examples, folders[1], options(strategy), cut_off_for_a_while)
    assert seconds > OUTAGE_S
    assert disturbed["hosts"] == ["north", "south"]
    assert disturbed["checksum"] == undisturbed["checksum"]


@pytest.mark.parametrize(
    ("outage", "expected"),
    [
        (
            Network.separate_hosts,
            ["the network is interrupted between north and south, or", "made no progress for 20 s (stall_timeout_s)"],
        ),
        (Network.reset_connections, [" and north broke ", " and south broke ", " s after epoch "]),
    ],
    ids=["down", "reset"],
)
def test_failed_link_is_named(
    own_process: Any, examples: Path, tmp_path: Path, outage: Callable[[Network], None], expected: list[str]
) -> None:
    with pytest.raises(HopsError) as failure:
        own_process(train, examples, tmp_path, options("horovod", 20.0), outage)
    message = str(failure.value)
    assert any(words in message for words in expected), message
    assert "north" in message and "south" in message and "The last lines of its log" not in message
    assert failure.value.retryable and cause_of(failure.value) == "unreachable"
    assert list((tmp_path / "output" / "checkpoints").glob("step-*")), "the retry would start again"
