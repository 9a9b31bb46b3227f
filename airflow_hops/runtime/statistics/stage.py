"""The step of the statistics stage."""

from __future__ import annotations

import json
from collections.abc import Sequence

from airflow_hops.artifacts import Artifact, BadInput, RowCounts
from airflow_hops.runtime.context import StepContext
from airflow_hops.runtime.statistics.files import STATISTICS_FILE, SUMMARY_FILE
from airflow_hops.runtime.statistics.generate import collect_statistics
from airflow_hops.runtime.statistics.summary import summarize


def run(context: StepContext, *, splits: Sequence[str] | None = None, workers: int | None = None) -> Artifact:
    """The step: statistics of every split of an ``examples`` artifact.

    The key column is left out: its values are unique, so that it has no distribution. The time column is in, since
    the span of the data is worth knowing; schemas and comparisons leave it aside.

    Args:
        context: The step's context; input ``examples``.
        splits: Splits to look at; None for all.
        workers: Processes; None for the choice of :func:`generate_statistics`.

    Raises:
        BadInput: a split is missing, has no rows, or cannot be read.
    """
    examples = context.input("examples")
    folder = context.local("examples")
    facts = {name: examples.properties.get(name) for name in ("label", "key", "time", "window")}
    names = list(splits or examples.properties.get("splits") or sorted(p.name for p in folder.iterdir() if p.is_dir()))
    if not names:
        raise BadInput(f"{examples.uri}: no splits; expected folders of Parquet files (train, eval)")
    rows: dict[str, RowCounts] = {}
    metrics: dict[str, float] = {}
    with context.output() as writer:
        for number, split in enumerate(names):
            if not (folder / split).is_dir():
                raise BadInput(f"{examples.uri}: there is no split {split!r}; expected one of its folders")
            context.progress(number / len(names), f"statistics of {split}")
            found = collect_statistics(folder / split, workers=workers, exclude=[facts["key"] or ""])
            statistics = found.statistics
            target = writer.path / split
            target.mkdir(parents=True)
            (target / STATISTICS_FILE).write_bytes(statistics.SerializeToString(deterministic=True))
            (target / SUMMARY_FILE).write_text(json.dumps({"split": split, **summarize(statistics)}, indent=1))
            counted = int(statistics.datasets[0].num_examples)
            rows[split] = RowCounts(found.rows, counted)
            metrics[f"{split}_rows"] = counted
        metrics["features"] = len(statistics.datasets[0].features)
        return writer.commit(rows=rows, metrics=metrics, properties={"splits": names, **facts})
