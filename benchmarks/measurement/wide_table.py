"""Seconds of the steps before training on a table of many columns and few rows, without prepare.

Runs in the runtime environment: ``python -m benchmarks.measurement.wide_table <columns> <rows>``.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any


def main(columns: int, rows: int) -> None:
    import numpy as np
    import pyarrow as pa

    from airflow_hops.ml.schema import infer_schema
    from airflow_hops.ml.statistics import comparable_options, generate_statistics
    from airflow_hops.ml.validation.stage import compare_with_champion
    from airflow_hops.ml.validation.validate import validate_statistics

    def table(seed: int) -> Any:
        random = np.random.default_rng(seed)
        kinds: list[Callable[[], Any]] = [
            lambda: random.normal(size=rows),
            lambda: random.integers(0, 50, rows),
            lambda: random.choice(["a", "b", "c", "d"], rows),
        ]
        return pa.table({f"c{number}": kinds[number % 3]() for number in range(columns)})

    seconds: dict[str, float] = {}

    def timed(name: str, work: Callable[[], Any]) -> Any:
        start = time.perf_counter()
        found = work()
        seconds[name] = round(time.perf_counter() - start, 2)
        return found

    tables = [table(seed) for seed in (0, 1)]
    generate_statistics(tables[0].select(["c0"]), options=comparable_options())  # imports TFDV
    base, current = [
        timed("statistics", lambda t=t: generate_statistics(t, options=comparable_options())) for t in tables
    ]
    schema = timed("schema", lambda: infer_schema(base))
    anomalies = timed("validation", lambda: validate_statistics(current, schema, previous=base))
    timed("champion", lambda: compare_with_champion(anomalies, current, base, schema, [], "a version", "train"))
    print(json.dumps(seconds))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
