"""Statistics of thousands of features as a real artifact, for pages that must not grow slow with them.

Runs in the runtime environment, ``python -m benchmarks.measurement.ui_statistics <store> --dag <id> --run <id>
--task <id> --features 1000``, and prints the artifact's reference as JSON: an XCom value of that task.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from airflow_hops.core.artifacts.artifact import Artifact, Producer, RowCounts
from airflow_hops.core.store import ArtifactStore, ArtifactWriter

KIND = "statistics"
SPLITS = {"train": 800, "eval": 200}
"""Rows of each split."""
_WORDS = 40


def write_statistics(store: str, producer: Producer, features: int, splits: Mapping[str, int] = SPLITS) -> Artifact:
    """Computes statistics of random tables, the same each time, and publishes them as a step of the stage does.

    Of five features one is of words, one of small and one of large integers, one of floats with missing values and
    zeros, one of floats alone. In the second split every 97th feature has moved.

    Args:
        store: The artifact store's address.
        producer: Whose artifact it is to be.
        features: How many there are.
        splits: Rows of each split by its name.
    """
    there = ArtifactStore(store)
    with there.create(there.address(producer, KIND), KIND, producer) as writer:
        return fill_statistics(writer, features, splits)


def fill_statistics(writer: ArtifactWriter, features: int, splits: Mapping[str, int] = SPLITS) -> Artifact:
    """The same through the writer of a step's own output."""
    from airflow_hops.ml.statistics import comparable_options, generate_statistics

    tables = {split: _table(features, rows, seed) for seed, (split, rows) in enumerate(splits.items())}
    options = comparable_options()
    found = {split: generate_statistics(table, options=options, processes=1) for split, table in tables.items()}
    return _commit(writer, found, window=None)


def fill_window(writer: ArtifactWriter, source: Path, number: int) -> Artifact:
    """Statistics of a week as those of ``source``, each feature moved a little, every 97th of them far."""
    from airflow_hops.ml.statistics import STATISTICS_FILE, load_statistics

    found = load_statistics(source / "train" / STATISTICS_FILE)
    random: Any = np.random.default_rng(number)
    for index, feature in enumerate(found.datasets[0].features):
        by = random.normal(0, 0.1) + (2 if (index - number // 4) % 97 == 0 else 0)
        for histogram in feature.num_stats.histograms:
            for bucket in histogram.buckets:
                bucket.low_value += by * feature.num_stats.std_dev
                bucket.high_value += by * feature.num_stats.std_dev
        for rank, bucket in enumerate(feature.string_stats.rank_histogram.buckets):
            bucket.sample_count = round(bucket.sample_count * math.exp(by * (-1) ** rank))
    start = datetime(2026, 1, 5, tzinfo=UTC) + timedelta(weeks=number)
    return _commit(writer, {"train": found}, window=[start.isoformat(), (start + timedelta(weeks=1)).isoformat()])


def _commit(writer: ArtifactWriter, found: Mapping[str, Any], window: list[str] | None) -> Artifact:
    from airflow_hops.ml.statistics import STATISTICS_FILE, SUMMARY_FILE
    from airflow_hops.ml.statistics.pages import write_page
    from airflow_hops.ml.statistics.summary import summarize

    for split, statistics in found.items():
        folder = writer.path / split
        folder.mkdir(parents=True)
        (folder / STATISTICS_FILE).write_bytes(statistics.SerializeToString(deterministic=True))
        (folder / SUMMARY_FILE).write_text(json.dumps({"split": split, **summarize(statistics)}))
        write_page(folder, statistics)
    rows = {split: int(statistics.datasets[0].num_examples) for split, statistics in found.items()}
    features = max(len(statistics.datasets[0].features) for statistics in found.values())
    return writer.commit(
        rows={split: RowCounts(count, count) for split, count in rows.items()},
        metrics={"features": features, **{f"{split}_rows": count for split, count in rows.items()}},
        properties={"splits": list(found), "label": None, "key": None, "time": None, "window": window},
    )


def _table(features: int, rows: int, seed: int) -> Any:
    import pyarrow as pa

    return pa.table({f"feature_{number:04}": _column(number, rows, seed) for number in range(features)})


def _column(number: int, rows: int, seed: int) -> Any:
    import pyarrow as pa

    random = np.random.default_rng([seed, number])
    place = np.random.default_rng(number).normal(0, 50)
    moved = 3.0 if seed and number % 97 == 0 else 0.0
    kind = number % 5
    if kind == 0:
        words = np.minimum(random.geometric(0.15 / (1 + moved), rows), _WORDS)
        return pa.array([f"value {word} of {number}" for word in words])
    if kind == 1:
        return pa.array(random.poisson(4 + 4 * moved, rows))
    if kind == 2:
        return pa.array(random.integers(0, 10**6, rows) * int(1 + moved))
    values = random.normal(place + 40 * moved, 10, rows)
    if kind == 3:
        values[random.random(rows) < 0.3] = 0.0
        return pa.array(values, mask=random.random(rows) < 0.1 * (number % 10))
    return pa.array(np.exp(values / 20 + moved))


def main() -> None:
    """Writes an artifact and prints its reference."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("store", help="address of the artifact store")
    for name in ("dag", "run", "task"):
        parser.add_argument(f"--{name}", required=True, help=f"the {name} whose artifact it is to be")
    parser.add_argument("--features", type=int, default=1000, help="how many features (default: %(default)s)")
    given = parser.parse_args()
    artifact = write_statistics(given.store, Producer(given.dag, given.run, given.task), given.features)
    print(json.dumps(artifact.to_dict()))


if __name__ == "__main__":
    main()
