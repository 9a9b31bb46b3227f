"""Scripts for Horovod as its documentation has them: run unchanged on our ranks, they train as one process would."""

from __future__ import annotations

import os
import runpy
from pathlib import Path
from typing import Any

import horovod.tensorflow as hvd
import pytest
import tensorflow as tf
from tensorflow.python.autograph.impl.conversion import is_allowlisted

from airflow_hops.ml.training.gang import Channel, LocalRanks, Placement, run_gang
from airflow_hops.ml.training.keras.legacy import leave_unconverted, use_tf_keras

pytestmark = pytest.mark.server

SCRIPTS = Path(__file__).parent / "horovod_scripts"


@pytest.fixture(scope="module")
def left(own_process: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Returns the files of the scripts by rank; of rank 0, also those of a run of it alone."""
    return own_process(run_gang, _run_twice, 2, logs=tmp_path_factory.mktemp("logs"), launcher=LocalRanks(2))


def _run_twice(placement: Placement, channel: Channel) -> dict[str, Any]:
    together = _run_scripts()
    if placement.rank > 0:
        return {"together": together}
    for name in [name for name in os.environ if name.startswith("HOROVOD_")]:
        del os.environ[name]
    return {"together": together, "alone": _run_scripts()}


def _run_scripts() -> dict[str, Any]:
    results = {}
    leave_unconverted("horovod")
    for name in ("tensorflow_tape", "tf_keras_fit"):
        if name.startswith("tf_keras"):
            use_tf_keras()
        left = runpy.run_path(str(SCRIPTS / f"{name}.py"), run_name="__main__")
        results[name] = {key: left.get(key) for key in ("package", "weights", "losses", "ranks")}
    assert all(is_allowlisted(function) for function in (hvd.allreduce, tf.keras.layers.Dense.call))
    return results


@pytest.mark.parametrize(("script", "package"), [("tensorflow_tape", "tensorflow"), ("tf_keras_fit", "tf_keras")])
def test_two_ranks_match_one_on_whole_batches(left: Any, script: str, package: str) -> None:
    alone, first, second = left[0]["alone"][script], left[0]["together"][script], left[1]["together"][script]
    assert (alone["ranks"], first["ranks"]) == (1, 2)
    assert first["package"] == package
    assert first["weights"] == second["weights"]
    assert _flat(first["weights"]) == pytest.approx(_flat(alone["weights"]), abs=1e-5)


def test_horovod_metric_average_works_on_tf_keras(left: Any) -> None:
    alone = left[0]["alone"]["tf_keras_fit"]
    first, second = (rank["together"]["tf_keras_fit"] for rank in left)
    assert first["losses"] == second["losses"] == pytest.approx(alone["losses"], abs=1e-5)
    assert first["losses"][1] < first["losses"][0]


def _flat(nested: Any) -> list[float]:
    return [value for item in nested for value in _flat(item)] if isinstance(nested, list) else [nested]
