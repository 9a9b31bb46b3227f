"""Keras 3 over Horovod: real ranks, compared with one process on the concatenated batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.runtime
CHECKS = (str(Path(__file__).parent / "runtime_checks"),)
OPTIMIZERS = [
    "sgd",
    "sum",
    "adam_clipped",
    "sgd_clipped_by_value",
    "adamw_schedule",
    "ema",
    "accumulated",
    "accumulated_by_keras",
    "accumulated_with_scaled_loss",
]


@pytest.fixture(scope="module")
def ranks(shared_run_step: Any, warm_launcher: Any) -> Any:
    return shared_run_step("keras_checks:on_two_ranks", code_paths=CHECKS, launcher=warm_launcher)


@pytest.fixture(scope="module")
def three_ranks(shared_run_step: Any, warm_launcher: Any) -> Any:
    return shared_run_step("keras_checks:on_three_ranks", code_paths=CHECKS, launcher=warm_launcher)


@pytest.mark.parametrize("optimizer", [*OPTIMIZERS, "fp16", "tape"])
def test_ranks_have_equal_weights_to_the_last_bit(ranks: Any, optimizer: str) -> None:
    assert ranks[0][optimizer]["checksum"] == ranks[1][optimizer]["checksum"]


@pytest.mark.parametrize("optimizer", [*OPTIMIZERS, "sgd_sparse", "tape", "warmup"])
def test_two_ranks_equal_one_process_on_the_concatenated_batches(ranks: Any, optimizer: str) -> None:
    assert ranks[0][optimizer]["difference"] < 1e-5


@pytest.mark.parametrize("optimizer", ["sgd", "accumulated"])
def test_three_ranks_equal_one_process_on_the_concatenated_batches(three_ranks: Any, optimizer: str) -> None:
    assert three_ranks[0][optimizer]["difference"] < 1e-5
    assert len({rank[optimizer]["checksum"] for rank in three_ranks}) == 1


def test_gradients_that_travel_in_16_bits_are_near(ranks: Any) -> None:
    """What is rounded on its way makes a small difference, and it does make one."""
    assert 1e-6 < ranks[0]["fp16"]["difference"] < 1e-3
    assert ranks[0]["sgd"]["difference"] < 1e-6


@pytest.mark.parametrize("optimizer", ["accumulated", "accumulated_by_keras"])
def test_gradients_wait_on_their_rank_until_it_is_time(ranks: Any, optimizer: str) -> None:
    """Had they been exchanged after the first batch, they would be the same on both."""
    first, second = (rank[optimizer] for rank in ranks)
    assert first["unchanged"] and second["unchanged"]
    assert first["waiting"] and first["waiting"] != second["waiting"]


def test_a_rank_whose_scaled_gradients_overflow_does_not_keep_the_others_waiting(ranks: Any) -> None:
    first, second = (rank["mixed_float16"] for rank in ranks)
    assert (first["checksum"], first["scale"]) == (second["checksum"], second["scale"])
    assert first["trained"] and first["scale"] < first["initial_scale"]
    assert first["exchanged"]


def test_horovods_own_wrapper_does_not_exchange_gradients_of_keras_3(ranks: Any) -> None:
    """The trap that this module closes; should it fail, Horovod has learnt Keras 3 and ours may go."""
    assert ranks[0]["horovod"] != ranks[1]["horovod"]


def test_the_rate_warms_up_batch_by_batch_and_is_then_left_alone(ranks: Any) -> None:
    for rank in ranks:
        assert rank["warmup"]["rates"] == pytest.approx(rank["warmup"]["expected"])
        assert rank["warmup"]["after"] == [0.5] * 6


def test_a_schedule_sets_the_rate_of_its_epochs(ranks: Any) -> None:
    assert ranks[0]["schedule"] == pytest.approx([0.3, 0.05, 0.025, 0.025])


def test_rates_and_schedules_are_scaled(ranks: Any) -> None:
    assert ranks[0]["scaled"] == pytest.approx([0.8, 0.1, 0.1])


@pytest.mark.parametrize("gang", ["ranks", "three_ranks"])
def test_metrics_of_shards_of_different_sizes_are_those_of_one_process(
    gang: str, request: pytest.FixtureRequest
) -> None:
    found = [rank["metrics"] for rank in request.getfixturevalue(gang)]
    size = len(found)
    for rank in found:
        extra = rank["found"].pop("extra")
        assert extra == pytest.approx((size - 1) / 2)
        assert rank["found"] == pytest.approx(rank["expected"], abs=1e-6)
        assert rank["without_validation"] == pytest.approx(rank["expected"]["auc"], abs=1e-6)
    mean = sum(rank["own"]["auc"] for rank in found) / size
    assert abs(mean - found[0]["expected"]["auc"]) > 0.01, "the mean of the ranks' AUCs is another figure"


def test_a_callback_that_looks_at_metrics_decides_the_same_on_all_ranks(ranks: Any) -> None:
    first, second = (rank["plateau"] for rank in ranks)
    assert first == second
    assert first["rates"][-1] < first["rates"][0]


def test_a_rank_that_waits_for_another_counts_it_as_exchange(ranks: Any) -> None:
    waited, late = (rank["waits_s"] for rank in ranks)
    assert waited > 0.4
    assert 0 < late < waited - 0.3


def test_the_optimizer_serializes_as_what_it_was_and_is_wrapped_once(ranks: Any) -> None:
    assert ranks[0]["config"] == "Adam"
    assert ranks[0]["idempotent"]


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        ("not_an_optimizer", "DistributedOptimizer wants a Keras 3 optimizer, found builtins.str"),
        ("adasum", "op is Adasum, which Horovod has for MPI only; expected Average or Sum"),
        ("op", "expected horovod.tensorflow.Average or Sum"),
        ("no_batches", "backward_passes_per_step is 0, expected a number of batches, 1 or more"),
        ("two_answers", "but the optimizer's gradient_accumulation_steps is 3"),
        ("built", "backward_passes_per_step must be given before the optimizer is built"),
        ("several", "backward_passes_per_step is not for a MultiOptimizer"),
        ("sparse", "sparse_as_dense must be True"),
        ("jit", "compile it with jit_compile=False"),
        ("jit_without_callback", "compile it with jit_compile=False"),
        ("several_values", "metric 'f1' has shape (2,), expected a number; let it average"),
        ("schedule", "the optimizer's learning rate is a schedule of its own"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_sentence(ranks: Any, what: str, expected: str) -> None:
    for rank in ranks:
        assert expected in rank["errors"][what]
