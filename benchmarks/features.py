"""Point-in-time joins against Feast's engine and DuckDB, and online look-ups; see ``README.md``."""

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
# Not this folder, whose statistics.py is not the standard library's.
sys.path[:1] = [str(REPOSITORY)]

from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

from airflow_hops.cli.runtime import find_uv  # noqa: E402
from airflow_hops.runner.environments.named import make_named, named_folder  # noqa: E402
from airflow_hops.runner.environments.runtime import pins_of  # noqa: E402

RUNTIME = REPOSITORY / ".venv-runtime"
MARKS = {"feast_join": 1.0}
"""Feast's seconds over ours, at least."""


@contextlib.contextmanager
def redis() -> Iterator[str]:
    """Runs a Redis; yields host and port."""
    program = shutil.which("redis-server")
    if program is None:
        raise SystemExit("there is no redis-server in PATH: apt-get install redis-server")
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
    command = [program, "--port", str(port), "--bind", "127.0.0.1", "--save", ""]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        for _ in range(100):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.1)
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def answer_of(python: Path, *arguments: str | Path) -> Any:
    """Runs a program of this folder's measurement; returns its last line's JSON."""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    command = [str(python), *map(str, arguments)]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of the join")
    parser.add_argument("--requests", type=int, default=300, help="online look-ups")
    options = parser.parse_args()
    console = Console()
    requirements = ["feast[redis,duckdb,grpcio]==0.67.*"]
    make_named(RUNTIME, "benchmark-features", requirements, pins_of(RUNTIME), uv=find_uv(), say=console.print)
    feast = named_folder(RUNTIME, "benchmark-features") / "bin" / "python"
    measurement = REPOSITORY / "benchmarks" / "measurement"
    with redis() as place, tempfile.TemporaryDirectory() as folder:
        counts = ["--rows", str(options.rows), "--requests", str(options.requests)]
        figures = answer_of(feast, measurement / "feature_joins.py", folder, "--redis", place, *counts)
    joins, lookups, online = figures["joins"], figures["lookups"], figures["online"]
    table = Table(title=f"Join of {options.rows:,} rows with 5 views, and 50 features of 10 keys from Redis")
    for name in ("", "ours", "Feast", "DuckDB ASOF JOIN"):
        table.add_column(name, justify="right")
    table.add_row("join, s", f"{joins['ours_s']:.1f}", f"{joins['feast_s']:.1f}", f"{joins['duckdb_s']:.1f}")
    for name in ("median_s", "p99_s"):
        table.add_row(f"look-up, {name[:-2]}, ms", f"{1e3 * lookups[name]:.2f}", f"{1e3 * online[name]:.2f}", "–")
    console.print(table)
    ratios = {
        "feast_join": joins["feast_s"] / joins["ours_s"],
        "duckdb_join": joins["duckdb_s"] / joins["ours_s"],
    }
    print(json.dumps({"ratios": ratios, "marks": MARKS, "figures": figures}))


if __name__ == "__main__":
    main()
