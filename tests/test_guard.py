"""The guard: ranks that drift apart, or do not see what their split holds, stop with an error that says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.runtime
CHECKS = (str(Path(__file__).parent / "runtime_checks"),)


@pytest.fixture(scope="module")
def ranks(shared_run_step: Any, warm_launcher: Any) -> Any:
    return shared_run_step("guard_checks:on_two_ranks", code_paths=CHECKS, launcher=warm_launcher)


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        ("unwrapped", "the ranks' weights differ after step 1 of epoch 1 (checksums: rank 0: "),
        ("unwrapped", "the optimizer SGD does not exchange gradients: wrap it in"),
        ("unwrapped_and_off", "no error"),
        ("one_bit", "the ranks' weights differ after step 5 of epoch 1 (checksums: rank 0: "),
        ("one_bit", "something changes weights on some ranks only"),
        ("exchanged_places", "the ranks' weights differ after step 6 of epoch 1"),
        ("at_the_end", "the ranks' weights differ at the end of epoch 1"),
        ("rows_lost", "epoch 1 has given the model 191 rows over all ranks (rank 0: 96, rank 1: 95), but the split "),
        ("rows_lost", "holds 192: rows are lost"),
        ("rows_twice", "epoch 1 has given the model 195 rows over all ranks (rank 0: 96, rank 1: 99), but the split "),
        ("rows_twice", "holds 192: rows are given twice"),
        ("steps", "rank 0 within epoch 2 after step 6, rank 1 at the end of epoch 2 after step 3"),
        ("not_a_number_of_steps", "guard_every_steps is -1, expected a number of steps, or 0 for no guard"),
        ("final", "the ranks' weights differ at the end of training (checksums: rank 0: "),
        ("frozen", "the ranks' weights differ at the end of training (checksums: rank 0: "),
        ("no_number", "the model's weight 'kernel' holds values that are no numbers; lower the learning rate"),
        ("nan", "the loss is nan at step 3 of epoch 1; lower the learning rate"),
    ],
)
def test_every_rank_raises_the_same_error(ranks: Any, what: str, expected: str) -> None:
    assert expected in ranks[0][what]
    assert ranks[0][what] == ranks[1][what]


def test_a_rank_whose_batches_ran_out_is_said_where_others_are_checked(ranks: Any) -> None:
    assert "rank 1 has ended epoch 1 before step 7, which others have done: its batches ran out" in ranks[0]["joined"]


def test_a_training_in_order_is_checked_after_the_first_step_then_every_so_often_and_at_each_epochs_end(
    ranks: Any,
) -> None:
    first, second = (rank["fine"] for rank in ranks)
    assert first == second
    # Two epochs of six steps, every four: after step 1 and 5, at the end; after step 4, at the end.
    assert first["checks"] == 5
    assert first["rows"] == [192, 192]
    assert len(set(first["checksums"])) == 2 and all(len(checksum) == 16 for checksum in first["checksums"])


def test_rows_of_an_epoch_that_is_stopped_before_its_end_are_not_counted(ranks: Any) -> None:
    assert ranks[0]["stopped"] == [None]


def test_the_checksum_is_what_its_definition_says_and_sees_what_a_sum_would_not(ranks: Any) -> None:
    assert ranks[0]["checksum"] == {"one chunk": True, "several chunks": True}
    assert ranks[0]["sensitivity"] == {
        "rows exchanged": True,
        "two signs": True,
        "one bit": True,
        "negative zero": True,
        "nothing": False,
    }


def test_moving_statistics_become_the_mean_of_the_ranks(ranks: Any) -> None:
    first, second = (rank["statistics"] for rank in ranks)
    assert first["frozen_unchanged"] and second["frozen_unchanged"]
    # Without a validation: after the step, before and after averaging. With one, it comes before the epoch's end.
    after_step, before, after, again_after_step, averaged, _ = zip(first["looks"], second["looks"], strict=True)
    assert after_step[0] != after_step[1] and before == after_step
    assert after[0] == after[1] == pytest.approx([(a + b) / 2 for a, b in zip(*after_step, strict=True)])
    assert again_after_step[0] != again_after_step[1]
    assert averaged[0] == averaged[1]


def test_what_may_differ_by_rank_is_known(ranks: Any) -> None:
    names = [name.rpartition("/")[2] for name in ranks[0]["statistics"]["rank_variables"]]
    assert {"moving_mean", "moving_variance", "seed_generator_state"} <= set(names)


def test_a_loss_that_is_no_number_on_one_rank_ends_all_with_that_error(
    shared_run_step: Any, warm_launcher: Any
) -> None:
    ended = shared_run_step("guard_checks:nan_on_one_rank", code_paths=CHECKS, launcher=warm_launcher)
    assert ended["error"].startswith("the loss is nan at step 3 of epoch 1; lower the learning rate")
    assert "rank 1 of 2" in ended["error"]
    assert not ended["retryable"]
    assert ended["seconds"] < 50
