"""Contract tests of places of ranks, for pytest in the runtime environment."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import pytest

from airflow_hops.core.errors import BadInput, HopsError
from airflow_hops.core.steps.protocol import StepSpec
from airflow_hops.core.training.rank_places import RankConnection, place_of, rank_places
from airflow_hops.ml.step.context import StepContext
from airflow_hops.ml.training.gang import RankJob, RankLauncher, run_gang
from airflow_hops.ml.training.gang.crew import rank_launcher

_Result = TypeVar("_Result")
_CODE = """
import os
import time

from airflow_hops.hops import BadInput


def succeed(placement, channel, *, folders, text):
    if placement.rank == 0:
        (folders["output"] / "model.txt").write_text((folders["words"] / "words.txt").read_text())
    return [placement.rank, placement.size, text, os.environ["CONTRACT_VARIABLE"]]


def refuse(placement, channel, *, folders):
    if placement.rank == 1:
        raise BadInput("not this input")
    time.sleep(600)


def die(placement, channel, *, folders):
    if placement.rank == 1:
        os._exit(3)
    time.sleep(600)
"""


def in_own_process(function: Callable[..., _Result], *arguments: object) -> _Result:
    """Calls a function in a new process, since ranks cannot be forked from one in which TensorFlow runs."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def _run_ranks(where: Mapping[str, object], spec: str, scratch: Path, job: RankJob, logs: Path) -> list[object]:
    launcher = rank_launcher(where, StepContext(StepSpec.from_json(spec), scratch))
    return run_gang(job, 2, logs=logs, launcher=launcher, env={"CONTRACT_VARIABLE": "set"})


class RankPlaceContract:
    """Tests that every place of ranks passes; a subclass names it, and overrides fixtures for a place with two slots.

    Attributes:
        name: Name of the place in the entry-point group ``airflow_hops.rank_places``.
    """

    name: ClassVar[str]

    @pytest.fixture
    def connection(self) -> RankConnection | None:
        """Returns the connection that chooses the place."""
        return None

    @pytest.fixture
    def hosts(self) -> str | None:
        """Returns the argument ``hosts``."""
        return None

    @pytest.fixture
    def context(self, tmp_path: Path) -> StepContext:
        """Returns the context of the step."""
        return StepContext(StepSpec("ranks", "ranks:run", store=str(tmp_path / "store")), tmp_path / "scratch")

    @pytest.fixture
    def where(self, connection: RankConnection | None, hosts: str | None) -> dict[str, Any]:
        """Returns the description of the place for two ranks, as a step gets it."""
        description: dict[str, Any] = json.loads(json.dumps(rank_places()[self.name].where(connection, hosts, 2)))
        return description

    @pytest.fixture
    def launcher(self, where: dict[str, object], context: StepContext) -> RankLauncher:
        return rank_launcher(where, context)

    @pytest.fixture
    def run(self, where: dict[str, Any], context: StepContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
        """Returns a function that runs two ranks on a function of this module's code."""
        for name, content in (("code/contract_ranks.py", _CODE), ("words/words.txt", "from the step")):
            (tmp_path / name).parent.mkdir()
            (tmp_path / name).write_text(content)
        monkeypatch.syspath_prepend(str(tmp_path / "code"))

        def run(function: str, **params: object) -> list[Any]:
            job = RankJob(
                f"contract_ranks:{function}",
                params,
                code_paths=(str(tmp_path / "code"),),
                inputs={"words": tmp_path / "words"},
                output=tmp_path / "output",
            )
            (tmp_path / "output").mkdir()
            return in_own_process(_run_ranks, where, context.spec.to_json(), context.scratch, job, tmp_path / "logs")

        return run

    def test_describes_registered_place(self, where: dict[str, object]) -> None:
        assert place_of(where) is rank_places()[self.name]

    def test_ranks_return_results_and_output(self, run: Any, tmp_path: Path) -> None:
        assert run("succeed", text="a") == [[rank, 2, "a", "set"] for rank in range(2)]
        assert (tmp_path / "output" / "model.txt").read_text() == "from the step"

    def test_bad_input_of_a_rank_ends_all(self, run: Any) -> None:
        with pytest.raises(BadInput, match=r"not this input \(rank 1 of 2"):
            run("refuse")

    def test_death_of_a_rank_ends_all(self, run: Any) -> None:
        with pytest.raises(HopsError, match="rank 1 ") as raised:
            run("die")
        assert raised.value.retryable

    def test_refuses_more_ranks_than_slots(self, launcher: RankLauncher) -> None:
        with pytest.raises(HopsError, match="np is 5000"):
            launcher.place(5000)

    def test_divides_its_slots(self, launcher: RankLauncher) -> None:
        assert [len(each.place(1)) for each in launcher.divide(2, 1)] == [1, 1]
        with pytest.raises(HopsError):
            launcher.divide(2500, 2)
