"""What drift does to predictions, with a model whose answers are known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.runtime
CHECKS = (str(Path(__file__).parent / "runtime_checks"),)


@pytest.fixture(scope="module")
def check(shared_run_step: Any, warm_launcher: Any) -> Any:
    """Runs a check in the runtime environment."""
    return lambda name: shared_run_step(f"skew_row_checks:{name}", code_paths=CHECKS, launcher=warm_launcher)


@pytest.fixture(scope="module")
def attributed(check: Any) -> Any:
    return check("attribute")


def test_each_drifted_feature_has_the_effect_that_the_model_gives_it(attributed: Any) -> None:
    effects = attributed["drifted"]["effects"]
    # x is one standard deviation higher: 0.05. Red is served a quarter more often, at 0.2. m is lost half of the time.
    assert effects["x"]["effect"] == pytest.approx(0.05, abs=0.003)
    assert effects["x"]["effect_signed"] == pytest.approx(0.05, abs=0.003)
    for name in ("colour", "m"):
        assert effects[name]["effect"] == pytest.approx(0.05, abs=4 * effects[name]["standard_error"])
        assert effects[name]["effect_signed"] == pytest.approx(effects[name]["effect"], rel=0.05)
        assert 0.0005 < effects[name]["standard_error"] < 0.003
    assert effects["unused"]["effect"] == 0
    shift = attributed["drifted"]["prediction_current"] - attributed["drifted"]["prediction_reference"]
    assert shift == pytest.approx(0.15, abs=0.02)
    assert attributed["drifted"]["rows"] == 2000


def test_a_feature_that_matters_and_has_not_moved_has_none(attributed: Any) -> None:
    assert attributed["drifted"]["names"][-1] == "unused"
    # Predictions vary by 0.1 with y: independent draws would change them by 0.11.
    assert attributed["drifted"]["effects"]["y"]["effect"] < 0.004
    assert max(effect["effect"] for effect in attributed["same"]["effects"].values()) < 0.004


def test_the_same_seed_gives_the_same_effects_and_features_can_be_chosen(attributed: Any) -> None:
    assert attributed["again"] == attributed["drifted"]
    assert set(attributed["two"]["names"]) == {"x", "y"}
    assert attributed["two"]["rows"] == 20
    assert attributed["back"]["effects"]["x"]["effect_signed"] == pytest.approx(-0.05, abs=0.003)
    assert attributed["back"]["effects"]["m"]["effect_signed"] == pytest.approx(-0.05, abs=0.006)


def test_restored_values_have_the_references_distribution_and_change_least(check: Any) -> None:
    found = check("restored")
    assert found["same_values"] and found["same_order"]
    assert found["same_integers"] and found["kept_integers"]
    # Of 1,000: a from 700 to 500, b from 200 to 0; c and the missing value take their places.
    assert found["words"] == {"a": 500, "b": 0, "c": 300, "": 200}
    assert found["words_changed"] == 400
    assert (found["filled"], found["filled_in_range"]) == (0, True)
    assert found["emptied"] == pytest.approx(0.25, abs=0.02)
    assert (found["gone"], found["from_nothing"]) == (4000, 0)


def test_what_cannot_be_attributed_is_named(check: Any) -> None:
    found = check("attribution_errors")
    assert "nothing: the SavedModel does not load" in found["no_model"]
    assert found["column"] == "current table: there is no column 'y'; there are x, m, colour, unused"
    assert found["no_rows"] == "current: no rows"
    assert "reference: column 'unused' is an integer and missing in 50 of 100 rows" in found["integer"]
    assert "the probability is NaN or infinite in 100 rows" in found["infinite"]
    assert found["few"] == "rows is 1, expected at least 2"
