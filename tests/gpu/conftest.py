"""Fixtures of the GPU's tests: ``make test-gpu`` runs them where there is an NVIDIA GPU, and skips them elsewhere.

They need PyTorch or JAX with CUDA, and neither TensorFlow, Horovod nor a network. ``HOPS_TEST_GPU=cpu`` runs them on
the CPU, for whoever changes them: nothing that such a run prints is a figure of a GPU.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_hops.core.artifacts.properties import ExamplesProperties
from airflow_hops.core.training.options import TrainingOptions
from airflow_hops.ml.training.devices import Gpu, get_gpus
from airflow_hops.ml.training.gang import LocalRanks
from airflow_hops.ml.training.stage.training import Training, train_model

ON_CPU = os.environ.get("HOPS_TEST_GPU") == "cpu"
FEATURES = 32
ROWS = {"train": 20_000 if ON_CPU else 2_000_000, "eval": 10_000}
FIGURES = pytest.StashKey[list[tuple[str, str]]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[FIGURES] = []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not ON_CPU and not get_gpus():
        for item in items:
            item.add_marker(pytest.mark.skip(reason="NVML finds no NVIDIA GPU (CUDA_VISIBLE_DEVICES may hide it)"))


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Prints what was measured, for the documentation."""
    for gpu in {gpu.name for gpu in get_gpus()}:
        terminalreporter.write_line(f"\nmeasured on {gpu}:")
    for name, value in config.stash[FIGURES]:
        terminalreporter.write_line(f"  {name}: {value}")


@pytest.fixture
def figure(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Notes a figure, which is printed last."""
    return lambda name, value: request.config.stash[FIGURES].append((name, value))


@pytest.fixture(scope="session")
def gpus() -> list[Gpu]:
    """The GPUs of this machine; on the CPU, one that is none."""
    return get_gpus() or [Gpu("")]


@pytest.fixture(scope="session")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Examples without a transform graph: 32 numbers, a label that follows from them, and the row's number."""
    folder, random = tmp_path_factory.mktemp("examples"), np.random.default_rng(7)
    weights = random.normal(size=FEATURES)
    for split, rows in ROWS.items():
        (folder / split).mkdir()
        values = random.normal(size=(rows, FEATURES)).astype("float32")
        late = (np.tanh(values @ weights) + random.normal(size=rows) > 0).astype("int64")
        table = pa.table({**{f"f{i}": values[:, i] for i in range(FEATURES)}, "late": late, "key": np.arange(rows)})
        pq.write_table(table, folder / split / "part-0.parquet", row_group_size=50_000)
    return folder


@pytest.fixture
def train(examples: Path, tmp_path: Path, gpus: list[Gpu]) -> Callable[..., Any]:
    """Runs a function, by default of ``gpu_functions``, as a training; returns its summary with ``messages``."""

    def run(
        function: str, *, np: int | None = None, name: str = "", resume_from: Path | None = None, **others: Any
    ) -> Any:
        ranks = len(gpus) if np is None else np
        messages: list[Any] = []
        output = tmp_path / (name or function)
        output.mkdir()
        options = {"strategy": "torch", **others}
        training = Training(
            TrainingOptions(train=function if ":" in function else f"gpu_functions:{function}", np=ranks, **options),
            examples,
            output,
            ExamplesProperties(label="late", key="key", splits=tuple(ROWS), problem="binary"),
            launcher=LocalRanks(ranks),
            resume_from=resume_from,
            code_paths=(str(Path(__file__).parent),),
        )
        summary = train_model(training, on_message=lambda rank, message: messages.append({**message, "rank": rank}))
        return {**summary, "messages": messages}

    return run
