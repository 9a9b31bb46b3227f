"""Checkpoints and what comes of them: a training that was killed ends as one that was not."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Any

import pytest

from airflow_hops.artifacts import Artifact
from airflow_hops.hooks.runtime import StepFailed

pytestmark = pytest.mark.runtime
CHECKS = (str(Path(__file__).parent / "runtime_checks"),)
STEPS, EPOCHS = 10, 3


@pytest.fixture(scope="module")
def run(shared_run_step: Any, warm_launcher: Any) -> Any:
    def run_step(entry: str, **kwargs: Any) -> Any:
        return shared_run_step(entry, code_paths=CHECKS, launcher=warm_launcher, **kwargs)

    return run_step


@pytest.fixture(scope="module")
def examples(run: Any) -> Artifact:
    found: Artifact = run(
        "transformed_examples:write", params={"rows": {"train": [301, 90], "eval": [80]}}, kind="transformed_examples"
    )
    return found


@pytest.fixture(scope="module")
def train(run: Any, examples: Artifact) -> Any:
    """Trains with a function of ``resume_checks``."""

    def train(run_id: str, *, function: str = "train", settings: Any = None, **params: Any) -> Artifact:
        artifact: Artifact = run(
            "airflow_hops.runtime.train:run",
            params={
                "train": f"resume_checks:{function}",
                "params": {"epochs": EPOCHS, "batch_size": 40, **params},
                "deterministic": True,
                "checkpoint_every_steps": 4,
                **(settings or {}),
            },
            inputs={"examples": examples},
            kind="model",
            run_id=run_id,
        )
        return artifact

    return train


@pytest.fixture(scope="module")
def killed(train: Any, shared_run_step: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A training with a rank killed at a random step of two epochs, each try resuming, and one without."""
    seed = random.SystemRandom().randrange(1 << 30)
    print(f"steps at which ranks are killed: random.Random({seed})")
    generator = random.Random(seed)
    kills = [
        {
            "step": epoch * STEPS + generator.randrange(1 if epoch else 6, STEPS + 1),
            "rank": generator.randrange(2),
            "steps_per_execution": steps_per_execution,
        }
        for epoch, steps_per_execution in ((0, 1), (1, 3))
    ]
    whole = _outcome(shared_run_step.store.local(train("whole")))
    markers = tmp_path_factory.mktemp("kills")
    began = []
    for _ in kills:
        with pytest.raises(StepFailed, match="was ended by SIGKILL") as failure:
            train("killed", kills=kills, markers=str(markers))
        assert failure.value.retryable
        began += [line.text for line in shared_run_step.lines if line.text.startswith("resuming")]
    resumed = _outcome(shared_run_step.store.local(train("killed", kills=kills, markers=str(markers))))
    began += [line.text for line in shared_run_step.lines if line.text.startswith("resuming")]
    return whole, resumed, began


def test_a_training_killed_at_random_steps_ends_with_the_same_bits_as_one_that_was_not(killed: Any) -> None:
    whole, resumed, began = killed
    assert len(began) == 2
    assert any("of epoch" in line for line in began), f"no epoch was resumed within: {began}"
    assert whole["summary"]["deterministic"] is True and whole["summary"]["threads_per_rank"] == 1
    assert resumed["variables"] == whole["variables"]
    assert resumed["summary"]["checksum"] == whole["summary"]["checksum"]


def test_the_same_training_gives_the_same_bits_twice_and_another_seed_others(
    train: Any, killed: Any, shared_run_step: Any
) -> None:
    again = _outcome(shared_run_step.store.local(train("again")))
    assert again["variables"] == killed[0]["variables"]
    assert again["facts"] == killed[0]["facts"]
    other = _outcome(shared_run_step.store.local(train("other", settings={"seed": 1}, epochs=1)))
    assert other["epochs"][0] != again["epochs"][0]


def test_metrics_of_a_resumed_epoch_are_those_of_the_whole_epoch(killed: Any) -> None:
    whole, resumed, _ = killed
    assert len(whole["epochs"]) == EPOCHS
    assert resumed["epochs"] == whole["epochs"]


def test_generators_and_callbacks_go_on_where_they_were_on_every_rank(killed: Any) -> None:
    whole, resumed, _ = killed
    assert resumed["facts"] == whole["facts"]
    first, second = (rank["draws"] for rank in whole["facts"])
    assert all(mine != other for mine, other in zip(first, second, strict=True)), "ranks draw their own numbers"
    assert whole["facts"][0]["learning_rate"] == pytest.approx(0.005)


def test_the_guard_counts_every_row_of_a_resumed_epoch_once(killed: Any) -> None:
    whole, resumed, _ = killed
    assert whole["summary"]["guard"]["rows"] == [391] * EPOCHS
    assert set(resumed["summary"]["guard"]["rows"]) == {391}
    assert resumed["summary"]["synchronized"] is True


def test_a_loop_of_ones_own_is_resumed_within_an_epoch(train: Any, shared_run_step: Any, tmp_path: Path) -> None:
    given: dict[str, Any] = {"function": "train_by_oneself", "epochs": 2}
    whole = _outcome(shared_run_step.store.local(train("own-whole", **given)))
    given |= {"step": 17, "marker": str(tmp_path / "killed")}
    with pytest.raises(StepFailed, match="was ended by SIGKILL"):
        train("own-killed", **given)
    resumed = _outcome(shared_run_step.store.local(train("own-killed", **given)))
    assert 9 <= resumed["summary"]["resumed_at_step"] <= 15
    assert resumed["variables"] == whole["variables"]
    assert resumed["epochs"] == whole["epochs"]


def test_a_fit_of_ones_own_is_guarded_and_a_rank_that_reads_fewer_batches_is_named_and_waited_for_by_none(
    train: Any, shared_run_step: Any
) -> None:
    began = time.monotonic()
    with pytest.raises(StepFailed) as failure:
        train("uneven", function="train_on_uneven_batches", settings={"stall_timeout_s": 200})
    assert "took different numbers of steps in epoch 1 (rank 0: 5, rank 1: 3)" in str(failure.value)
    assert "the batches of rank 1 ran out first" in str(failure.value)
    assert not failure.value.retryable
    assert time.monotonic() - began < 100, "nobody waits for the stall timeout"
    assert "rows over all ranks: [391]" in [line.text for line in shared_run_step.lines]
    told = [line.text for line in shared_run_step.lines if line.text.startswith("told before")]
    assert "would take different numbers of steps an epoch (rank 0: 5, rank 1: 3)" in told[0]


def test_what_befalls_a_checkpoint_leaves_the_one_before(run: Any, small_folder: Path) -> None:
    found = run("resume_checks:corner_cases", params={"small": str(small_folder)})
    assert found["kept"] == ["step-00000014"]
    kind, message = found["full"]
    assert kind == "HopsError"
    assert f"{small_folder}/checkpoints/step-00000020: the checkpoint cannot be written" in message
    assert "No space left on device" in message
    kind, message = found["poisoned"]
    assert kind == "BadInput"
    assert "variable 'kernel' holds values that are no numbers after epoch 0 (step 21)" in message
    assert found["left"] == ["step-00000014"]
    assert found["restored"] is True
    assert found["other_ranks"] == [14, 1, 0], "another number of ranks begins the epoch anew"


def _outcome(folder: Path) -> dict[str, Any]:
    summary = json.loads((folder / "training.json").read_text())
    last = max((folder / "checkpoints").iterdir())
    return {
        "summary": summary,
        "epochs": [{name: v for name, v in epoch.items() if name != "seconds"} for epoch in summary["epochs"]],
        "variables": (last / "variables.npz").read_bytes(),
        "facts": [json.loads(path.read_text()) for path in sorted(folder.glob("facts-*.json"))],
    }
