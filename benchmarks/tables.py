"""Ingests 10 million rows of PostgreSQL, and copies them to a file by ``COPY``; see ``README.md``."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path[0] = str(REPOSITORY)  # not this folder, whose statistics.py is not the standard library's

MARK = 4.0
"""Seconds of ingest over those of ``COPY … (FORMAT csv)``, at most."""
QUERY = "SELECT * FROM flights"
ROWS = """
    CREATE UNLOGGED TABLE flights AS
        SELECT n AS id, '2013-01-01Z'::timestamptz + n * interval '1 second' AS at,
            (ARRAY['AA', 'UA', 'DL', 'B6', 'EV'])[1 + n % 5] AS carrier, 'N' || (n * 7919 % 4000) AS tail,
            (n * 37 % 300)::float8 / 7 AS delay, (n % 5000)::int4 AS distance, (n % 9999)::numeric(12, 2) AS price
        FROM generate_series(1::int8, {rows}) AS n;
    ALTER TABLE flights ADD PRIMARY KEY (id);
    ANALYZE flights;
"""


@contextlib.contextmanager
def postgres(folder: Path) -> Iterator[str]:
    """Runs a PostgreSQL with its data below a folder; yields libpq's parameters."""
    import psycopg

    from demo.production import find_program

    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
    user: list[str] = []
    if os.geteuid() == 0:  # PostgreSQL refuses to run as root
        user = ["runuser", "-u", "postgres", "--"]
        shutil.chown(folder, "postgres")
    data = str(folder / "data")
    command = [*user, find_program("initdb"), "-D", data, "-U", "airflow", "--auth=trust"]
    subprocess.run(command, check=True, cwd="/", stdout=subprocess.DEVNULL)
    command = [*user, find_program("postgres"), "-D", data, "-h", "127.0.0.1", "-p", str(port), "-k", ""]
    server = subprocess.Popen(command, cwd="/", stderr=subprocess.DEVNULL)
    address = f"host=127.0.0.1 port={port} user=airflow dbname=postgres"
    try:
        for _ in range(100):
            with contextlib.suppress(psycopg.OperationalError), psycopg.connect(address):
                break
            time.sleep(0.1)
        os.environ["AIRFLOW_CONN_BENCHMARK"] = f"postgres://airflow@127.0.0.1:{port}/postgres"
        yield address
    finally:
        server.terminate()
        server.wait()


def copy(address: str, form: str, path: Path) -> float:
    """Copies the table to a file; returns the seconds."""
    import psycopg

    began = time.monotonic()
    statement = f"COPY ({QUERY}) TO STDOUT (FORMAT {form})"
    with psycopg.connect(address) as connection, connection.cursor().copy(statement) as rows, path.open("wb") as file:
        for block in rows:
            file.write(block)
    return time.monotonic() - began


def ingest(store: Path, rows: int, **fields: Any) -> float:
    """Ingests the table in a step as ``IngestOperator`` runs it; returns the seconds, with the start of the step."""
    from dataclasses import replace

    from airflow_hops.core.artifacts.artifact import Producer
    from airflow_hops.core.steps.protocol import Output, StepSpec
    from airflow_hops.extensions.tables import QuerySource
    from airflow_hops.runner.launchers.local import LocalLauncher
    from airflow_hops.runner.runtime import RuntimeHook

    hook = RuntimeHook()
    hook.__dict__["settings"] = replace(hook.settings, store=str(store))
    producer = Producer("benchmark", "run", "ingest")
    source = QuerySource(conn_id="benchmark", sql=QUERY, **fields).to_dict()
    spec = StepSpec(
        step="ingest",
        entry="airflow_hops.ml.ingest:run",
        params={"sources": {"flights": source}},
        output=Output(hook.store.address(producer, "snapshot"), "snapshot"),
        producer=producer,
    )
    launcher = LocalLauncher(REPOSITORY / ".venv-runtime", None)
    began = time.monotonic()
    result = hook.run(spec, launcher=launcher, cache=False, on_line=lambda line: None)
    seconds = time.monotonic() - began
    assert result.value["rows"]["flights"]["rows_out"] == rows
    return seconds


def main() -> None:
    """Measures, and prints a line of JSON last."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=10_000_000)
    rows = parser.parse_args().rows
    os.environ.setdefault("AIRFLOW_HOME", tempfile.mkdtemp(prefix="hops-benchmark-"))
    os.environ["AIRFLOW_CONN_HOPS_DEFAULT"] = '{"conn_type": "hops"}'

    import psycopg

    figures: dict[str, float] = {"rows": rows}
    with tempfile.TemporaryDirectory(prefix="hops-benchmark-", dir="/tmp") as folder, postgres(Path(folder)) as address:
        with psycopg.connect(address, autocommit=True) as connection:
            connection.execute(ROWS.format(rows=rows))
        ways = {
            "copy_csv_s": lambda: copy(address, "csv", Path(folder, "rows")),
            "copy_binary_s": lambda: copy(address, "binary", Path(folder, "rows")),
            "ingest_s": lambda: ingest(Path(folder, "store"), rows),
            "ingest_ranges_s": lambda: ingest(Path(folder, "store"), rows, partition_column="id", num_partitions=8),
        }
        for name, measure in ways.items():
            figures[name] = round(measure(), 1)
            print(f"{name}: {figures[name]}", flush=True)
    ratio = round(min(figures["ingest_s"], figures["ingest_ranges_s"]) / figures["copy_csv_s"], 2)
    print(json.dumps({"benchmark": "tables", "figures": figures, "ratio": ratio, "mark": MARK}))
    if ratio > MARK:
        raise SystemExit(f"ingest took {ratio} times as long as COPY, more than {MARK}")


if __name__ == "__main__":
    main()
