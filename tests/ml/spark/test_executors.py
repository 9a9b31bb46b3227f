"""Errors of a step whose executors cannot do its work."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_hops.core.errors import BadInput, HopsError, ServerUnreachable
from airflow_hops.core.store import ArtifactStore
from airflow_hops.ml.spark.context import check_executors

Answer = tuple[str, dict[str, str], str]


@dataclass
class Spark:
    """A context whose one executor examines itself in this process; ``change`` stands for its host's differences."""

    change: Callable[[Answer], Answer] = lambda answer: answer
    master: str = "spark://master:7077"
    defaultParallelism: int = 1

    def parallelize(self, numbers: range, _: int) -> Any:
        def examined(examine: Callable[[int], Answer]) -> Any:
            return SimpleNamespace(collect=lambda: [self.change(examine(number)) for number in numbers])

        return SimpleNamespace(map=examined)

    def getConf(self) -> dict[str, str]:
        return {"spark.driver.host": "10.0.0.1"}


def fails(words: str) -> Callable[[Answer], Answer]:
    def change(_: Answer) -> Answer:
        raise RuntimeError(words)

    return change


def test_executor_with_the_same_libraries_and_store_is_accepted(store: ArtifactStore) -> None:
    check_executors(Spark(), store)
    assert store.names(store.internal("_state")) == [], "the probe is removed"


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        (
            lambda answer: (answer[0], {**answer[1], "pandas": "1.4.4"}, ""),
            BadInput,
            rf"executor on {socket.gethostname()} has pandas 1\.4\.4, but this step \d.*; give the cluster's hosts the",
        ),
        (lambda answer: ("h", {"Python": answer[1]["Python"], "pyarrow": "missing"}, ""), BadInput, "pyarrow missing"),
        (
            lambda answer: ("spark1", answer[1], "FileNotFoundError: x"),
            BadInput,
            r"Spark's executor on spark1 does not see the store's folder .* \(FileNotFoundError: x\); use a store that",
        ),
        (
            fails('Lost task 0.3 (TID 3) (10.0.0.2 executor 0): Cannot run program "/none/bin/python": No such file'),
            BadInput,
            r"executor on 10\.0\.0\.2 cannot run this step's Python [\d.]+: .*/none/bin/python.*No such file",
        ),
        (fails("[PYTHON_VERSION_MISMATCH] different version"), BadInput, "executor on a host cannot run this step's"),
        (
            fails("All masters are unresponsive! Giving up."),
            ServerUnreachable,
            r"master spark://master:7077 ran nothing for this step: it does not answer, .*driver at 10\.0\.0\.1",
        ),
    ],
)
def test_executor_that_differs_is_named(
    store: ArtifactStore, change: Callable[[Answer], Answer], kind: type[Exception], message: str
) -> None:
    with pytest.raises(HopsError, match=message) as failure:
        check_executors(Spark(change), store)
    assert type(failure.value) is kind
    assert store.names(store.internal("_state")) == []


class GivenUp(Spark):
    """A context that Spark has ended, since its master was silent before the first job."""

    @property
    def defaultParallelism(self) -> int:
        raise RuntimeError("Cannot call methods on a stopped SparkContext")

    @defaultParallelism.setter
    def defaultParallelism(self, value: int) -> None:
        pass


def test_master_that_was_silent_before_the_first_job_is_named(store: ArtifactStore) -> None:
    with pytest.raises(ServerUnreachable, match="master spark://master:7077 ran nothing for this step") as failure:
        check_executors(GivenUp(), store)
    assert failure.value.address == "spark://master:7077"


def test_remote_store_out_of_an_executors_reach_is_named(store: ArtifactStore) -> None:
    remote: Any = SimpleNamespace(is_local=False, root="s3://bucket/hops", uri=store.uri)
    with pytest.raises(BadInput, match=r"executor on \S+ cannot use the store s3://bucket/hops \(AttributeError"):
        check_executors(Spark(), remote)
