"""Keras 3 over Horovod: two real ranks, compared with one process on the concatenated batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.runtime
CHECKS = (str(Path(__file__).parent / "runtime_checks"),)


@pytest.fixture(scope="module")
def ranks(shared_run_step: Any, warm_launcher: Any) -> Any:
    return shared_run_step("keras_checks:on_two_ranks", code_paths=CHECKS, launcher=warm_launcher)


@pytest.mark.parametrize("optimizer", ["sgd", "adam_clipped", "adamw_schedule"])
def test_ranks_have_equal_weights_to_the_last_bit(ranks: Any, optimizer: str) -> None:
    assert ranks[0][optimizer]["checksum"] == ranks[1][optimizer]["checksum"]


@pytest.mark.parametrize("optimizer", ["sgd", "sgd_sparse", "adam_clipped", "adamw_schedule"])
def test_two_ranks_equal_one_process_on_the_concatenated_batches(ranks: Any, optimizer: str) -> None:
    assert max(rank[optimizer]["difference"] for rank in ranks) < 1e-5


def test_a_rank_whose_scaled_gradients_overflow_does_not_keep_the_others_waiting(ranks: Any) -> None:
    first, second = (rank["mixed_float16"] for rank in ranks)
    assert (first["checksum"], first["scale"]) == (second["checksum"], second["scale"])
    assert first["trained"] and first["scale"] < first["initial_scale"]


def test_horovods_own_wrapper_does_not_exchange_gradients_of_keras_3(ranks: Any) -> None:
    """The trap that this module closes; should it fail, Horovod has learnt Keras 3 and ours may go."""
    assert ranks[0]["horovod"] != ranks[1]["horovod"]


def test_weights_that_differ_stop_training_and_name_ranks_and_checksums(ranks: Any) -> None:
    for rank in ranks:
        error = rank["unwrapped"]
        assert error.startswith("the ranks' weights differ at the end of epoch 1 (SHA-256 by rank: rank 0: ")
        assert "the optimizer SGD does not exchange gradients: wrap it in" in error
        assert "after step 12 of epoch 3" in rank["one_rank_changes"]
        assert "something changes weights on one rank only" in rank["one_rank_changes"]


def test_jit_compile_is_refused_in_one_sentence(ranks: Any) -> None:
    for rank in ranks:
        assert "compile it with jit_compile=False" in rank["jit"]
        assert "compile it with jit_compile=False" in rank["jit_without_callback"]


def test_a_loss_that_is_not_a_number_stops_training(ranks: Any) -> None:
    assert ranks[0]["nan"].startswith("the loss is nan at step 1 of epoch 1; lower the learning rate")


def test_metrics_are_averaged_over_the_ranks(ranks: Any) -> None:
    assert [rank["averaged"] for rank in ranks] == [{"loss": 0.5, "auc": 0.625}] * 2


def test_the_optimizer_serializes_as_what_it_was_and_is_wrapped_once(ranks: Any) -> None:
    assert ranks[0]["config"] == "Adam"
    assert ranks[0]["idempotent"]
    assert "DistributedOptimizer wants a Keras 3 optimizer, found builtins.str" in ranks[0]["not_an_optimizer"]


@pytest.mark.parametrize(
    ("files", "batch_size", "size"), [([1, 30, 2], 8, 2), ([13, 0, 20], 10, 3), ([5], 2, 2), ([3], 100, 3)]
)
def test_every_row_is_given_once_an_epoch_in_equally_many_steps(
    shared_run_step: Any, warm_launcher: Any, files: list[int], batch_size: int, size: int
) -> None:
    params = {"files": files, "batch_size": batch_size, "size": size}
    ranks = shared_run_step("keras_checks:shards", params=params, code_paths=CHECKS, launcher=warm_launcher)
    everything = list(range(sum(files)))
    assert len({len(batches) for rank in ranks for batches in rank["passes"]}) == 1
    assert all(batch for rank in ranks for batches in rank["passes"] for batch in batches)
    for number in range(2):
        seen = [row for rank in ranks for batch in rank["passes"][number] for row in batch]
        assert sorted(seen) == everything
    assert [row for rank in ranks for batch in rank["ordered"] for row in batch] == everything
    assert max(rank["rows"] for rank in ranks) - min(rank["rows"] for rank in ranks) <= 1
    if sum(files) > 30:
        assert ranks[0]["passes"][0] != ranks[0]["passes"][1]
