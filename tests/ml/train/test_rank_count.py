"""``np="auto"``: the number of ranks is measured, chosen and said."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import ask_mlflow
import pytest

from airflow_hops.core.contract.artifacts import Artifact, BadInput, HopsError
from airflow_hops.core.contract.training import TrainingOptions
from airflow_hops.ml.stages.train.rank_count import with_chosen_ranks
from airflow_hops.ml.stages.train.strategies import Roles
from airflow_hops.ml.stages.train.training import Training
from airflow_hops.ml.training.checkpoints import Checkpoint, Position
from airflow_hops.ml.training.gang import LocalRanks
from tests.ml.train.trainings import Trainings, read_events

TWO_SLOTS = {"kind": "local", "slots": 2}


def _train(trainings: Trainings, examples: Artifact, function: str, **given: Any) -> tuple[Artifact, dict[str, Any]]:
    """The model and its summary."""
    artifact = trainings(f"training_functions:{function}", examples, np="auto", where=TWO_SLOTS, **given)
    summary = json.loads((trainings.store.local(artifact) / "training.json").read_text())
    assert summary["ranks"] == artifact.properties["ranks"]
    return artifact, summary


def test_auto_np_chooses_the_faster(trainings: Trainings, examples: Artifact, tmp_path: Path) -> None:
    tracking_uri = f"sqlite:///{tmp_path}/mlflow.db"
    services = {"tracking_uri": tracking_uri}
    artifact, summary = _train(trainings, examples, "train_until_stopped", services=services, tensorboard=True)
    rates = summary["rows_per_second_by_ranks"]
    assert list(rates) == ["1", "2"]
    assert min(rates.values()) > 0
    expected = 2 if rates["2"] >= 1.1 * rates["1"] else 1
    assert summary["ranks"] == expected
    pattern = rf"np='auto': 1 rank: [\d,]+ rows a second, 2 ranks: [\d,]+ rows a second; trains on {expected} rank"
    *begin, chosen = (line for line in trainings.lines if line.startswith("np='auto'"))
    assert begin == ["np='auto': measures 1 rank", "np='auto': measures 2 ranks"]
    assert re.match(pattern, chosen)
    assert len(summary["epochs"]) == 2, "no epoch of the measurement counts, and no callback of the user's sees it"
    (run,) = ask_mlflow.runs(None, tracking_uri, "tests")
    assert (run["status"], run["params"]["np"]) == ("FINISHED", str(expected))
    assert [step for step, _ in run["metrics"]["loss"]] == [1, 2]
    assert run["metrics"]["gradient_norm"] == [(7, 0.25)]
    events = read_events(trainings.store.local(artifact))
    assert [step for step, _ in events["train/loss"]] == [step for step, _ in events["validation/loss"]] == [0, 1]
    assert events["train/gradient_norm"] == [(7, 0.25)]


def test_rank_count_halving_the_time_is_chosen(trainings: Trainings, examples: Artifact) -> None:
    _, summary = _train(trainings, examples, "train_on_rows_that_take_time", row_s=0.006)
    assert summary["ranks"] == 2
    assert summary["rows_per_second_by_ranks"]["2"] > 1.1 * summary["rows_per_second_by_ranks"]["1"]


def test_a_training_too_short_to_measure_takes_one_rank(trainings: Trainings, examples: Artifact) -> None:
    artifact = trainings("training_functions:train", examples, np="auto", where=TWO_SLOTS, epochs=1)
    assert artifact.properties["ranks"] == 1
    assert "np='auto': the training is too short to measure; trains on 1 rank" in trainings.lines


def test_code_without_fit_cannot_be_measured(trainings: Trainings, examples: Artifact) -> None:
    with pytest.raises(BadInput, match=r"np is 'auto'.*training_functions:return_nothing has not called it"):
        trainings("training_functions:return_nothing", examples, np="auto", where=TWO_SLOTS)


def test_auto_np_refuses_own_loop(trainings: Trainings, examples: Artifact) -> None:
    with pytest.raises(BadInput, match=r"while np='auto' measured 1 rank: .*context.callbacks is called before it"):
        trainings("training_functions:train_with_an_own_fit", examples, np="auto", where=TWO_SLOTS)
    assert "the loop has begun" not in trainings.lines


def test_batch_larger_than_split_counts_once(trainings: Trainings, examples: Artifact) -> None:
    functions = "training_functions:train_on_rows_that_take_time"
    artifact = trainings(functions, examples, np="auto", where={"kind": "local", "slots": 1}, batch_size=100_000)
    summary = json.loads((trainings.store.local(artifact) / "training.json").read_text())
    assert 0 < summary["rows_per_second_by_ranks"]["1"] < 1000


def test_failed_measurement_is_reported(trainings: Trainings, examples: Artifact) -> None:
    with pytest.raises(HopsError, match="while np='auto' measured 2 ranks: ValueError: not on two"):
        trainings("training_functions:train_but_not_on_two_ranks", examples, np="auto", where=TWO_SLOTS)


@pytest.mark.parametrize("np", ["Auto", "2", None, True])
def test_invalid_number_of_ranks_is_refused(np: Any) -> None:
    with pytest.raises(BadInput, match=re.escape(f"np is {np!r}, expected a number of ranks, or 'auto'")):
        Roles.of_training(TrainingOptions(train="a:b", np=np))


@pytest.mark.parametrize(
    ("slots", "said"),
    [
        (4, "resumes on 3 ranks, as the checkpoint"),
        (2, "resumes on 2 ranks, all slots of this machine; the checkpoint is of 3"),
    ],
)
def test_resumed_training_keeps_its_ranks(tmp_path: Path, slots: int, said: str) -> None:
    training = Training(TrainingOptions(train="a:b", np=1), None, tmp_path, launcher=LocalRanks(slots))
    checkpoint = Checkpoint(tmp_path, Position(step=3), 3, ())
    lines: list[str] = []
    assert with_chosen_ranks(training, checkpoint, lines.append).options.np == min(3, slots)
    assert lines == [f"np='auto': {said}"]


@pytest.mark.parametrize("options", [{"deterministic": True}, {"strategy": "torch"}])
def test_auto_np_refuses_unmeasurable_training(tmp_path: Path, options: dict[str, Any]) -> None:
    training = Training(TrainingOptions(train="a:b", np=1, **options), None, tmp_path, launcher=LocalRanks(4))
    with pytest.raises(BadInput, match=r"np is 'auto'.*give np a number"):
        with_chosen_ranks(training, None, print)
