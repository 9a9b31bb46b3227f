"""Ranks on Spark's executors, and their accidents: in local mode, and in the scheduled run in a cluster of two."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyspark
import pytest
from waiting import is_gone, wait_for

from airflow_hops.core.errors import BadInput, HopsError
from airflow_hops.extensions.ranks.ml.spark import SparkRanks
from airflow_hops.ml.training.gang import RankJob, run_gang
from airflow_hops.runner.environments.java import find_java
from tests.ml.waiting_ranks import forkserver

pytestmark = pytest.mark.spark

JVM_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:NewSize=16m"
IN_A_CLUSTER = pytest.mark.scheduled(part="clusters")
REPOSITORY = Path(__file__).parents[4]


@dataclass
class Ended:
    """How a gang ended: its error, what its ranks had said, and what is left of its job."""

    error: Exception | None
    met: list[Mapping[str, Any]] = field(default_factory=list)
    jobs: list[str] = field(default_factory=list)


@dataclass
class Cluster:
    """The driver of an application on a cluster, a process of its own, which starts gangs when it is asked to."""

    driver: Any
    connection: Any

    def begin(self, size: int, code_paths: tuple[str, ...], **params: Any) -> None:
        self.connection.send((size, code_paths, params))

    def hear(self) -> Any:
        """Returns the driver's next message: who has met, or how the gang ended."""
        assert self.connection.poll(600), "the driver says nothing"
        return self.connection.recv()

    def run(self, size: int, code_paths: tuple[str, ...], **params: Any) -> Ended:
        self.begin(size, code_paths, **params)
        while not isinstance(result := self.hear(), Ended):
            pass
        return result


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Two executors, each with a GPU, so it says; a test may kill them, or the driver."""
    folder = tmp_path
    discovery = folder / "discover"
    discovery.write_text(
        "#!/bin/sh\nnumber=20\nwhile ! mkdir $0.$number; do number=$((number + 1)); done 2> /dev/null\n"
        'echo "{\\"name\\": \\"gpu\\", \\"addresses\\": [\\"$number\\"]}"\n'
    )
    discovery.chmod(0o700)
    conf = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": JVM_OPTIONS,
        "spark.driver.host": "127.0.0.1",
        "spark.executor.extraJavaOptions": JVM_OPTIONS,
        "spark.executor.resource.gpu.amount": "1",
        "spark.log.level": "WARN",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "300s",
        "spark.task.resource.gpu.amount": "1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.worker.resource.gpu.amount": "1",
        "spark.worker.resource.gpu.discoveryScript": str(discovery),
    }
    arguments = ["--master", "local-cluster[2,1,1024]", *(f"--conf={name}={value}" for name, value in conf.items())]
    java = find_java(Path(sys.prefix))
    assert java is not None, "Spark needs a Java"
    environment = {
        "HOPS_GPU_LEASES": str(folder / "leases"),
        "JAVA_HOME": str(java.home),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_SUBMIT_ARGS": shlex.join([*arguments, "pyspark-shell"]),
        "PYTHONPATH": str(REPOSITORY),
    }
    # Where Spark's own workers, of which local-cluster starts two, keep what executors log.
    workers = Path(pyspark.__file__).parent / "work"
    folders = set(workers.glob("app-*"))
    forking = forkserver()
    ours, theirs = forking.Pipe()
    driver = forking.Process(target=drive, args=(theirs, environment, folder))
    driver.start()
    theirs.close()
    yield Cluster(driver, ours)
    ours.close()
    driver.join(60)
    driver.kill()
    for logs in set(workers.glob("app-*")) - folders:
        shutil.rmtree(logs)


def drive(connection: Any, environment: dict[str, str], folder: Path) -> None:
    """Runs the driver; hides Spark's complaints when it is killed."""
    os.environ |= environment
    with (folder / "driver.log").open("w") as log:
        os.dup2(log.fileno(), 2)
    from pyspark import SparkConf, SparkContext

    with SparkContext(conf=SparkConf()) as context:
        while True:
            try:
                size, code_paths, params = connection.recv()
            except EOFError:
                return
            job = RankJob("rank_work:meet", params, code_paths)
            connection.send(run_ranks(context, connection.send, folder, job, size))


def run_ranks(context: Any, say: Callable[[Any], None], folder: Path, job: RankJob, size: int) -> Ended:
    """Runs a gang on the executors; says when its ranks have met."""
    met: dict[int, Mapping[str, Any]] = {}

    def on_message(rank: int, message: Mapping[str, Any]) -> None:
        met[rank] = message
        if len(met) == 2:
            say([met[0], met[1]])

    error = None
    try:
        run_gang(job, size, logs=folder / "logs", launcher=SparkRanks(context), on_message=on_message)
    except Exception as found:
        error = found
    jobs = [thread.name for thread in threading.enumerate() if thread.name.startswith("ranks-")]
    return Ended(error, [met[rank] for rank in sorted(met)], jobs)


def all_gone(met: list[Mapping[str, Any]]) -> bool:
    return all(is_gone(rank["pid"]) for rank in met)


def assert_rank_was_killed(ended: Ended) -> None:
    error = str(ended.error)
    assert type(ended.error) is HopsError
    assert "rank 1 of 2 on" in error and "was ended by SIGKILL" in error
    assert "after the first all-reduce; all ranks were ended" in error
    assert "  rank 1 is about to have an accident" in error
    assert all_gone(ended.met) and ended.jobs == []


def test_too_few_slots_fail_at_once_with_both_numbers(spark: Any, tmp_path: Path) -> None:
    job = RankJob("rank_work:meet", {"accident": "none"})
    for size, words in (
        (5, r"np is 5, but there are only 2 slots"),
        (0, r"^np is 0, expected a number of ranks, 1 or"),
    ):
        with pytest.raises(BadInput, match=words):
            run_gang(job, size, logs=tmp_path, launcher=SparkRanks(spark.sparkContext))


def test_a_killed_rank_is_named(spark: Any, rank_code: tuple[str, str], tmp_path: Path) -> None:
    job = RankJob("rank_work:meet", {"accident": "rank killed"}, rank_code)
    assert_rank_was_killed(run_ranks(spark.sparkContext, lambda _: None, tmp_path, job, 2))


@IN_A_CLUSTER
def test_a_killed_rank_ends_the_gang_in_a_cluster(cluster: Cluster, rank_code: tuple[str, str]) -> None:
    # One is killed after an all-reduce, while the other waits in the next.
    met = cluster.run(2, rank_code[:1], accident="rank killed", reduces=True)
    assert [rank["total"] for rank in met.met] == [3.0, 3.0]
    assert [rank["local"] for rank in met.met] == [[0, 2], [1, 2]], "executors of one host are neighbours"
    assert len({rank["executor"] for rank in met.met}) == 2
    assert {rank["devices"] for rank in met.met} == {"20", "21"}, "the GPUs of their Spark tasks"
    assert_rank_was_killed(met)


@IN_A_CLUSTER
def test_killed_executor_is_named(cluster: Cluster, rank_code: tuple[str, str]) -> None:
    ended = cluster.run(2, rank_code, accident="executor killed")
    assert type(ended.error) is HopsError
    assert str(ended.error).startswith("rank 1 of 2 on")
    assert "is lost: Command exited with code 137" in str(ended.error)
    assert all_gone(ended.met) and ended.jobs == []


@IN_A_CLUSTER
def test_a_killed_driver_leaves_no_rank_on_any_executor(cluster: Cluster, rank_code: tuple[str, str]) -> None:
    cluster.begin(2, rank_code, accident="none")
    ranks = cluster.hear()
    assert len(ranks) == 2 and not any(is_gone(rank["pid"]) for rank in ranks)
    cluster.driver.kill()
    wait_for(lambda: all_gone(ranks), "the ranks have ended", 6)
