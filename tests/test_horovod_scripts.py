"""Scripts for Horovod as its documentation has them: run unchanged on our ranks, they train as one process would."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.runtime
CHECKS = (str(Path(__file__).parent / "runtime_checks"),)


@pytest.fixture(scope="module")
def left(shared_run_step: Any, warm_launcher: Any) -> Any:
    return shared_run_step("script_checks:on_two_ranks_and_on_one", code_paths=CHECKS, launcher=warm_launcher)


@pytest.mark.parametrize(("script", "package"), [("tensorflow_tape", "tensorflow"), ("tf_keras_fit", "tf_keras")])
def test_two_ranks_end_with_the_weights_of_one_on_the_whole_batches(left: Any, script: str, package: str) -> None:
    alone, first, second = left[0]["alone"][script], left[0]["together"][script], left[1]["together"][script]
    assert (alone["ranks"], first["ranks"]) == (1, 2)
    assert first["package"] == package
    assert first["weights"] == second["weights"]
    assert _flat(first["weights"]) == pytest.approx(_flat(alone["weights"]), abs=1e-5)


def test_horovods_own_metric_average_works_on_tf_keras(left: Any) -> None:
    alone = left[0]["alone"]["tf_keras_fit"]
    first, second = (rank["together"]["tf_keras_fit"] for rank in left)
    assert first["losses"] == second["losses"] == pytest.approx(alone["losses"], abs=1e-5)
    assert first["losses"][1] < first["losses"][0]


def _flat(nested: Any) -> list[float]:
    return [value for item in nested for value in _flat(item)] if isinstance(nested, list) else [nested]
