"""Files that the tasks of a Spark job write, and the summaries that they send to the driver."""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from airflow_hops.core.contract.artifacts import BadInput, HopsError, RowCounts
from airflow_hops.ml.spark.context import as_spark_failure


@dataclass(kw_only=True)
class TaskSummary:
    """The summary of a task: one line of JSON that it hands to the driver.

    Attributes:
        error: What is wrong with the input, or None.
        no_space: Whether the disk is full.
    """

    error: str | None = None
    no_space: bool = False

    @contextlib.contextmanager
    def recording_errors(self, folder: str, path: str | None = None) -> Iterator[None]:
        """Takes down bad input and a full disk, so that the driver can say it in one sentence; all else is raised.

        Args:
            folder: Where the task writes.
            path: The Parquet file that it reads.
        """
        try:
            yield
        except BadInput as error:
            self.error = str(error)
        except Exception as error:
            # Arrow says it with an error number, TensorFlow with words.
            if os.strerror(errno.ENOSPC) in str(error):
                self.error, self.no_space = f"no space left on the device of {folder} ({error})", True
            elif path and (isinstance(error, pa.ArrowInvalid) or (isinstance(error, OSError) and error.errno is None)):
                self.error = f"{path}: not a readable Parquet file ({error})"
            else:
                raise

    def to_json(self) -> str:
        """One line."""
        return json.dumps(asdict(self))


@dataclass
class SplitSummary(TaskSummary):
    """The summary of a task that works on a part of a split.

    Attributes:
        split: The split.
        rows: Rows written.
        not_finite: Outputs with NaN or infinity: in how many rows.
    """

    split: str
    rows: int = 0
    not_finite: dict[str, int] = field(default_factory=dict)

    def count_not_finite(self, outputs: Mapping[str, Any]) -> None:
        """Counts NaN and infinity in outputs, arrays of shape ``[rows, ...]``."""
        for name, values in outputs.items():
            if values.dtype.kind == "f":
                bad = ~np.isfinite(values).reshape(len(values), -1).all(axis=1)
                if bad.any():
                    self.not_finite[name] = self.not_finite.get(name, 0) + int(bad.sum())


Summary = TypeVar("Summary", bound=TaskSummary)


def run_tasks(
    spark: Any, work: Callable[[Any, Any], str], plan: Any, tasks: Sequence[Any], of: type[Summary]
) -> list[Summary]:
    """Does tasks in one Spark job.

    Args:
        spark: The Spark context.
        work: Does a task by the plan, and returns its summary as JSON.
        plan: What every task gets.
        tasks: The tasks.
        of: The class of the summaries.

    Raises:
        BadInput: a task found its input bad.
        HopsError: Spark failed, or the disk is full.
    """
    with as_spark_failure():
        lines = spark.parallelize(tasks, len(tasks)).map(partial(work, plan)).collect()
    summaries = [of(**json.loads(line)) for line in lines]
    for summary in summaries:
        if summary.error is not None:
            raise (HopsError if summary.no_space else BadInput)(summary.error)
    return summaries


def count_rows(splits: Mapping[str, Sequence[Path]], summaries: Sequence[SplitSummary]) -> dict[str, RowCounts]:
    """Rows in, by the files' footers, and out, by what the tasks wrote, for each split."""
    return {
        split: RowCounts(
            sum(pq.read_metadata(path).num_rows for path in paths),
            sum(summary.rows for summary in summaries if summary.split == split),
        )
        for split, paths in splits.items()
    }


def remove_leftovers(folder: Path) -> None:
    """Removes parts of a split that Python workers left when they were killed; Spark has done them again."""
    for rubbish in folder.glob(".part-*"):
        rubbish.unlink()


class StagedFiles:
    """Files of a task, which bear their names when the block of this context manager has ended well.

    A task that Spark runs twice writes the same names.
    """

    def __init__(self) -> None:
        self._staged: list[tuple[Path, Path]] = []
        self._writers: list[Any] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, failure: type[BaseException] | None, *_: object) -> None:
        try:
            if failure is None:
                for writer in self._writers:
                    writer.close()
                for staging, path in self._staged:
                    staging.replace(path)
        finally:
            for writer in self._writers:
                with contextlib.suppress(Exception):  # a full disk refuses the last bytes too
                    writer.close()
            for staging, _path in self._staged:
                staging.unlink(missing_ok=True)

    def open(self, path: Path, writer: Callable[[str], Any]) -> Any:
        """Opens a file with a writer that takes its path and has a ``close``; its folder is made."""
        path.parent.mkdir(parents=True, exist_ok=True)
        staging = path.with_name(f".{path.name}.{os.getpid()}")
        self._staged.append((staging, path))
        self._writers.append(writer(str(staging)))
        return self._writers[-1]


def use_one_thread() -> None:
    """Has TensorFlow work in one thread: Spark runs a Python worker for each core."""
    import tensorflow as tf

    with contextlib.suppress(RuntimeError):  # TensorFlow is already in use in this process
        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(1)
