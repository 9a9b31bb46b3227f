"""``np="auto"``: the number of ranks is measured, chosen and said."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import ask_mlflow
import pytest
import training_functions

from airflow_hops.core.contract.artifacts import Artifact, BadInput, HopsError
from airflow_hops.core.contract.training import TrainingOptions
from airflow_hops.ml.stages.train import rank_count
from airflow_hops.ml.stages.train.rank_count import with_chosen_ranks
from airflow_hops.ml.stages.train.rank_program import measure_rank
from airflow_hops.ml.stages.train.strategies import Roles
from airflow_hops.ml.stages.train.training import Training
from airflow_hops.ml.training.checkpoints import Checkpoint, Position
from airflow_hops.ml.training.context import TrainContext
from airflow_hops.ml.training.fitting import Measured
from airflow_hops.ml.training.gang import Channel, LocalRanks, Placement
from tests.ml.train.trainings import Trainings, rank_session, read_events

TWO_SLOTS = {"kind": "local", "slots": 2}


def test_auto_np_measures_and_chooses_the_faster(trainings: Trainings, examples: Artifact, tmp_path: Path) -> None:
    tracking_uri = f"sqlite:///{tmp_path}/mlflow.db"
    services, of = (
        {"tracking_uri": tracking_uri},
        {"np": "auto", "where": TWO_SLOTS, "tensorboard": True, "row_s": 0.002},
    )
    artifact = trainings("training_functions:train_on_rows_that_take_time", examples, services=services, **of)
    folder = trainings.store.local(artifact)
    summary = json.loads((folder / "training.json").read_text())
    rates = summary["rows_per_second_by_ranks"]
    assert list(rates) == ["1", "2"] and min(rates.values()) > 0
    ranks = 2 if rates["2"] >= 1.1 * rates["1"] else 1  # two are faster, unless the machine has much else to do
    assert summary["ranks"] == artifact.properties["ranks"] == ranks
    pattern = rf"np='auto': 1 rank: [\d,]+ rows a second, 2 ranks: [\d,]+ rows a second; trains on {ranks} rank"
    *begin, chosen = (line for line in trainings.lines if line.startswith("np='auto'"))
    assert begin == ["np='auto': measures 1 rank", "np='auto': measures 2 ranks"]
    assert re.match(pattern, chosen)
    assert len(summary["epochs"]) == 2, "no epoch of the measurement counts, and no callback of the user's sees it"
    (run,) = ask_mlflow.runs(None, tracking_uri, "tests")
    assert (run["status"], run["params"]["np"]) == ("FINISHED", str(ranks))
    assert [step for step, _ in run["metrics"]["loss"]] == [1, 2]
    assert run["metrics"]["gradient_norm"] == [(7, 0.25)]
    events = read_events(folder)
    assert [step for step, _ in events["train/loss"]] == [step for step, _ in events["validation/loss"]] == [1, 2]
    assert events["train/gradient_norm"] == [(7, 0.25)]


def _auto(folder: Path, slots: int) -> Training:
    return Training(TrainingOptions(train="a:b", np=1), None, folder, launcher=LocalRanks(slots))


@pytest.mark.parametrize(
    ("slots", "rates", "most_ranks", "ranks", "said"),
    [
        (2, {1: 100.0, 2: 109.0}, 99, 1, "1 rank: 100 rows a second, 2 ranks: 109 rows a second; trains on 1 rank"),
        (6, {1: 100.0, 2: 190.0, 4: 300.0, 6: 320.0}, 99, 4, "6 ranks: 320 rows a second; trains on 4 ranks"),
        (6, {1: 100.0, 2: 190.0}, 3, 2, "trains on 2 ranks"),
        (2, {1: None}, 99, 1, "the training is too short to measure; trains on 1 rank"),
    ],
    ids=["no gain", "until it gains no more", "few rows", "too short"],
)
def test_number_of_ranks_follows_the_rates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slots: int, rates: Any, most_ranks: int, ranks: int, said: str
) -> None:
    def measure(training: Training, entry: str) -> Any:
        return [{"rows_per_second": rates[training.options.np], "most_ranks": most_ranks}]

    monkeypatch.setattr(rank_count, "run_ranks", measure)
    lines: list[str] = []
    chosen = with_chosen_ranks(_auto(tmp_path, slots), None, lines.append)
    assert chosen.options.np == ranks and lines[-1].endswith(said)
    assert chosen.rates == {number: rate for number, rate in rates.items() if rate}


def test_failed_measurement_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(training: Training, entry: str) -> Any:
        raise HopsError("ValueError: not here")

    monkeypatch.setattr(rank_count, "run_ranks", fail)
    with pytest.raises(HopsError, match="while np='auto' measured 1 rank: ValueError: not here"):
        with_chosen_ranks(_auto(tmp_path, 2), None, print)


def _fit_once(context: TrainContext) -> None:
    context.fit(training_functions.compiled(context), epochs=1, batch_size=100_000)


def _measure(examples: Path, folder: Path) -> tuple[list[tuple[float | None, int]], list[str]]:
    """Measures in this process a training with large batches, and one that is short; errors of others."""
    errors: list[str] = []
    measured: list[tuple[float | None, int]] = []
    for name in ("train_with_an_own_fit", "return_nothing"):
        options = TrainingOptions(train=f"training_functions:{name}").to_dict()
        of: dict[str, Any] = {"folders": {"examples": examples, "output": folder}, "options": options, "examples": {}}
        with pytest.raises(BadInput) as failure:
            measure_rank(Placement(0, 1, 0, 1, "here"), Channel(), splits_uri="", storage_options={}, **of)
        errors.append(str(failure.value))
    for function in (training_functions.train_on_rows_that_take_time, _fit_once):
        params = {"batch_size": 100_000, "row_s": 0.0003}
        context = TrainContext(rank_session(examples, folder, is_measured=True, params=params))
        with pytest.raises(Measured) as end:
            function(context)
        measured.append((end.value.rows_per_second, end.value.most_ranks))
    return measured, errors


def test_first_steps_of_a_fit_are_measured(
    own_process: Any, examples: Artifact, trainings: Trainings, tmp_path: Path
) -> None:
    (large, short), errors = own_process(_measure, trainings.store.local(examples), tmp_path)
    assert 0 < large[0] < 3400, "a batch larger than the split counts its rows once"
    assert large[1] == 1001 and short == (None, 1001)
    assert re.search(r"np is 'auto'.*context.callbacks is called before it", errors[0])
    assert re.search(r"np is 'auto'.*training_functions:return_nothing has not called it", errors[1])


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
    training = _auto(tmp_path, slots)
    checkpoint = Checkpoint(tmp_path, Position(step=3), 3, ())
    lines: list[str] = []
    assert with_chosen_ranks(training, checkpoint, lines.append).options.np == min(3, slots)
    assert lines == [f"np='auto': {said}"]


@pytest.mark.parametrize("options", [{"deterministic": True}, {"strategy": "torch"}])
def test_auto_np_refuses_unmeasurable_training(tmp_path: Path, options: dict[str, Any]) -> None:
    training = Training(TrainingOptions(train="a:b", np=1, **options), None, tmp_path, launcher=LocalRanks(4))
    with pytest.raises(BadInput, match=r"np is 'auto'.*give np a number"):
        with_chosen_ranks(training, None, print)
