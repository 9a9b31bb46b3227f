"""Writes the pages of statistics: distributions of features, and sampled rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa

from airflow_hops.core.artifacts.page_files import PAGE_FILE, ROWS_FILE, PageIndex, PageView
from airflow_hops.ml.statistics.feature_figures import feature_detail, feature_table
from airflow_hops.ml.statistics.page_rows import encode_rows
from airflow_hops.ml.statistics.summary import feature_name, vector_width

MAX_SLICES = 100
"""Maximum number of slices with figures; also limited by :data:`MAX_SLICE_FEATURES`."""
MAX_SLICE_FEATURES = 5_000
MAX_VALUES = 1_000
"""Maximum number of values of a feature of strings; also limited by :data:`MAX_ALL_VALUES`."""
MAX_ALL_VALUES = 50_000
_NUMPY = orjson.OPT_SERIALIZE_NUMPY


def write_page(folder: Path, statistics: object, sample: pa.Table | None = None, total_rows: int = 0) -> None:
    """Writes ``page.jsonl`` and, with a sample of rows, ``page_rows.bin``.

    Args:
        folder: Folder of a split, or of a side of a comparison; created if necessary.
        statistics: ``DatasetFeatureStatisticsList``: the whole data set first, then its slices.
        sample: Sampled rows in random order.
        total_rows: Rows that the sample was drawn from.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / PAGE_FILE).write_bytes(b"\n".join(_lines(statistics, sample)) + b"\n")
    if sample is not None:
        (folder / ROWS_FILE).write_bytes(encode_rows(sample, total_rows))


def _lines(statistics: Any, sample: pa.Table | None) -> Iterator[bytes]:
    whole, *slices = statistics.datasets
    slices.sort(key=lambda dataset: (-dataset.num_examples, dataset.name))
    shown = slices[: min(MAX_SLICES, MAX_SLICE_FEATURES // max(1, len(whole.features)))]
    datasets = [(whole, None), *((each, each.name) for each in shown)]
    views, blocks, line = [], list[list[bytes]](), 1
    for dataset, key in datasets:
        for weighted in (False, True) if dataset.weighted_num_examples else (False,):
            blocks.append(_view(dataset, weighted=weighted, sample=None if key else sample))
            views.append(PageView(line, key, weighted))
            line += len(blocks[-1])
    index = PageIndex(
        rows=int(whole.num_examples),
        features=[feature_name(feature) for feature in whole.features],
        weighted_rows=whole.weighted_num_examples or None,
        slices={each.name: int(each.num_examples) for each in shown},
        slices_left_out=len(slices) - len(shown),
        views=tuple(views),
    )
    yield orjson.dumps(index.to_dict())
    for block in blocks:
        yield from block


def _view(dataset: Any, *, weighted: bool, sample: pa.Table | None) -> list[bytes]:
    vectors = [name for each in dataset.features if vector_width(each) and (name := feature_name(each))]
    if sample is not None:
        sample = sample.select([name for name in vectors if name in sample.column_names])
    texts = sum(each.WhichOneof("stats") == "string_stats" for each in dataset.features)
    values = min(MAX_VALUES, max(1, MAX_ALL_VALUES // max(1, texts)))
    rows = int(dataset.num_examples)
    return [
        orjson.dumps(feature_table(dataset, weighted=weighted, sample=sample), option=_NUMPY),
        *(
            orjson.dumps(feature_detail(each, rows, weighted=weighted, sample=sample, values=values), option=_NUMPY)
            for each in dataset.features
        ),
    ]
