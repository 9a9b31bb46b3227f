"""Ranks of torch.distributed, in an environment of their own; skipped where no CPU build of PyTorch can be had.

PyTorch takes longer to install than all other tests of trainings together. ``HOPS_TEST_TORCH`` names another build.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from uv import find_uv_bin

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.artifacts.properties import ModelProperties
from airflow_hops.core.errors import HopsError, StepFailed
from airflow_hops.runner.environments.named import make_named
from airflow_hops.runner.environments.runtime import pins_of
from airflow_hops.runner.launchers.local import LocalLauncher

pytestmark = [pytest.mark.runtime, pytest.mark.scheduled(part="frameworks")]
STEPS = (str(Path(__file__).parent), str(Path(__file__).parents[2] / "steps"))
ENTRY = "airflow_hops.ml.training.stage:run"


@pytest.fixture(scope="module")
def launcher(runtime: Path, tmp_path_factory: pytest.TempPathFactory) -> LocalLauncher:
    base = tmp_path_factory.mktemp("runtimes") / "runtime"
    base.symlink_to(runtime)
    lines: list[str] = []
    try:
        make_named(
            base,
            "torch",
            os.environ.get("HOPS_TEST_TORCH", "torch==2.13.0+cpu").split(),
            pins_of(base),
            uv=find_uv_bin(),
            say=lines.append,
        )
    except HopsError:
        pytest.skip(f"no CPU build of PyTorch where pip and uv look: {' '.join(lines)[-300:]}")
    return LocalLauncher(base.with_name("runtime-torch"))


@pytest.fixture(scope="module")
def examples(shared_run_step: Any, warm_launcher: Any) -> Artifact:
    result: Artifact = shared_run_step.transformed_examples(warm_launcher, 701, 200)
    return result


def train(run_step: Any, examples: Artifact, launcher: Any, run_id: str, **params: Any) -> Artifact:
    function = params.pop("function", "train")
    options = {"train": f"torch_functions:{function}", "params": params, "strategy": "torch", "np": 2}
    ids = {"kind": "model", "code_paths": STEPS, "launcher": launcher, "run_id": run_id}
    result: Artifact = run_step(ENTRY, params=options, inputs={"examples": examples}, **ids)
    return result


def test_retry_resumes_after_a_killed_torch_rank(
    shared_run_step: Any, examples: Artifact, launcher: LocalLauncher
) -> None:
    with pytest.raises(StepFailed, match=r"rank 1 of 2 .* SIGKILL[\s\S]*\(step 10\) is kept"):
        train(shared_run_step, examples, launcher, "torch", dies=True)
    model = train(shared_run_step, examples, launcher, "torch", dies=True)
    properties = ModelProperties.of(model)
    assert (properties.format, properties.framework, properties.ranks) == ("onnx", "torch", 2)
    assert properties.synchronized
    folder = shared_run_step.store.local(model)
    summary = json.loads((folder / "training.json").read_text())
    assert [sum(rows.values()) > 0 for rows in summary["rows_by_rank"]] == [True, True]
    assert summary["rows"]["train"] == 701
    assert summary["model"]["largest_difference"] < 1e-5
    assert "resumed after step 10" in (folder / "logs" / "rank-1.log").read_text()


def test_resumed_ranks_are_bit_identical(shared_run_step: Any, examples: Artifact, launcher: LocalLauncher) -> None:
    train(shared_run_step, examples, launcher, "resumed", function="resume_each")


@pytest.mark.parametrize(("param", "named"), [("alone", "0.weight"), ("own_mean", "0.mean")])
def test_ranks_with_different_models_are_refused(
    shared_run_step: Any, examples: Artifact, launcher: LocalLauncher, param: str, named: str
) -> None:
    with pytest.raises(StepFailed, match=rf"models differ at the end of training in {named}.*DistributedDataParallel"):
        train(shared_run_step, examples, launcher, param, **{param: True})


def test_missing_pytorch_names_the_command_to_add_it(
    shared_run_step: Any, examples: Artifact, warm_launcher: LocalLauncher
) -> None:
    with pytest.raises(
        StepFailed, match=r"PyTorch is not installed in this runtime environment.*create --name NAME --with torch"
    ):
        train(shared_run_step, examples, warm_launcher, "without")


def test_keras_on_torch(
    shared_run_step: Any, examples: Artifact, launcher: LocalLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    model = train(shared_run_step, examples, launcher, "keras", keras=True)
    properties = ModelProperties.of(model)
    assert (properties.format, properties.framework, properties.synchronized) == ("onnx", "torch", True)
