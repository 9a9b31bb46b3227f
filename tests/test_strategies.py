"""TensorFlow's own strategies on the ranks: mirrored workers, and parameter servers."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from airflow_hops.artifacts import Artifact
from airflow_hops.hooks.runtime import StepFailed

pytestmark = pytest.mark.runtime
CHECKS = (str(Path(__file__).parent / "runtime_checks"),)
WHERE = {"kind": "local", "slots": 4}


@pytest.fixture(scope="module")
def train(shared_run_step: Any, warm_launcher: Any) -> Any:
    """Trains with a function of ``strategy_functions``."""
    examples = shared_run_step(
        "transformed_examples:write",
        params={"rows": {"train": [300, 101], "eval": [100]}},
        kind="transformed_examples",
        code_paths=CHECKS,
        launcher=warm_launcher,
    )

    def train(function: str, **params: Any) -> tuple[Artifact, Path]:
        model = shared_run_step(
            "airflow_hops.runtime.train:run",
            params={"train": f"strategy_functions:{function}", "where": WHERE, **params},
            inputs={"examples": examples},
            kind="model",
            code_paths=CHECKS,
            launcher=warm_launcher,
        )
        return model, shared_run_step.store.local(model)

    return train


def _config(folder: Path, rank: int) -> dict[str, Any]:
    found = re.search(r"TF_CONFIG (\{.*\})", (folder / "logs" / f"rank-{rank}.log").read_text())
    assert found is not None
    config: dict[str, Any] = json.loads(found[1])
    return config


def test_mirrored_workers_end_with_equal_weights_and_a_model(train: Any) -> None:
    model, folder = train("mirrored", np=2, strategy="multi_worker_mirrored")
    assert model.properties["synchronized"] is True
    assert (folder / "saved_model" / "saved_model.pb").exists()
    configs = [_config(folder, rank) for rank in (0, 1)]
    assert configs[0]["cluster"] == configs[1]["cluster"]
    assert len(set(configs[0]["cluster"]["worker"])) == 2
    assert [config["task"] for config in configs] == [{"type": "worker", "index": rank} for rank in (0, 1)]
    for rank in (0, 1):
        assert "replicas 2" in (folder / "logs" / f"rank-{rank}.log").read_text()
    training = json.loads((folder / "training.json").read_text())
    assert (training["strategy"], training["ranks"]) == ("multi_worker_mirrored", 2)
    assert sum(rank["train"] for rank in training["rows_by_rank"]) == 401


def test_workers_that_forgot_the_scope_are_told(train: Any) -> None:
    with pytest.raises(StepFailed, match=r"weights differ at the end of training .* within context\.strategy\.scope"):
        train("apart", np=2, strategy="multi_worker_mirrored")


def test_parameter_servers_hold_the_variables_while_workers_train(train: Any) -> None:
    model, folder = train("with_parameter_servers", np=2, strategy="parameter_server", parameter_servers=1)
    log = (folder / "logs" / "rank-0.log").read_text()
    found = json.loads(log.partition("FOUND ")[2].partition("\n")[0])
    assert all("/job:ps/" in device for device in found["devices"])
    assert found["loss"][-1] < found["loss"][0]
    cluster = _config(folder, 0)["cluster"]
    assert {kind: len(addresses) for kind, addresses in cluster.items()} == {"chief": 1, "worker": 2, "ps": 1}
    assert (folder / "saved_model" / "saved_model.pb").exists()
    assert model.properties["synchronized"] is True
    assert {path.name for path in (folder / "logs").iterdir()} == {f"rank-{rank}.log" for rank in range(4)}


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({"strategy": "mirrored"}, "strategy is 'mirrored', expected one of horovod, multi_worker_mirrored"),
        ({"strategy": "parameter_server"}, "parameter_servers is 0, expected 1 or more"),
        ({"parameter_servers": 1}, "parameter_servers is 1, expected 0, as the strategy is 'horovod'"),
        ({"strategy": "parameter_server", "parameter_servers": 1, "np": 4}, "np is 6, but there are only 4 slots"),
        ({"strategy": "multi_worker_mirrored", "min_np": 1}, "min_np and max_np are for Horovod's ranks"),
    ],
)
def test_what_does_not_go_together_is_bad_input(train: Any, params: dict[str, Any], expected: str) -> None:
    with pytest.raises(StepFailed) as failure:
        train("mirrored", **params)
    assert expected in str(failure.value)
    assert not failure.value.retryable
