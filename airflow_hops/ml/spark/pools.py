"""Pools that work on a step's parts: processes of this machine or Spark's executors; the parts' files and summaries."""

from __future__ import annotations

import contextlib
import errno
import gc
import json
import multiprocessing
import os
import pickle
import signal
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
import pyarrow as pa

from airflow_hops.core.artifacts.artifact import FileEntry, RowCounts
from airflow_hops.core.errors import BadInput, HopsError
from airflow_hops.core.parquet_writer import parquet_writer
from airflow_hops.core.processes.lifetime import end_with_parent
from airflow_hops.core.processes.periodic import calling_periodically
from airflow_hops.core.steps.protocol import is_local_master
from airflow_hops.core.store import ArtifactStore, ArtifactWriter
from airflow_hops.ml.readers import scan
from airflow_hops.ml.readers.artifact_files import File, OutputFolder, example_files, files_below
from airflow_hops.ml.spark.context import as_spark_failure, local_master, start_spark_context
from airflow_hops.ml.step.context import StepContext

# A pool's work is a pure function from a part to files with fixed names and a summary, because Spark may run a task
# twice, at the same time or after a kill. Files are written under hidden names with the process id and renamed at the
# end of the part; a kill leaves hidden files, which the driver removes (remove_leftovers).
# Expected errors come back in the summary and are raised once by the driver; others fail the task, and Spark retries
# it. Local processes are forks that end with this process.

ROW_GROUP_ROWS = 65_536
"""Minimum rows of a written row group, except the last, and groups of many bytes."""

_POLL_S = 1.0
_GROUP_BYTES = 1 << 27


@dataclass(kw_only=True)
class WorkSummary:
    """Summary of a part, sent to the driver as one line of JSON.

    Attributes:
        error: Problem with the input, or None.
        no_space: Whether the disk is full.
        uploaded: Files that were written to a remote store, as fields of their entries.
    """

    error: str | None = None
    no_space: bool = False
    uploaded: list[Mapping[str, Any]] = field(default_factory=list)

    @contextlib.contextmanager
    def recording_errors(self, folder: str) -> Iterator[None]:
        """Records bad input and a full disk, for the driver to report in one sentence; raises all other errors.

        ``folder`` is the folder to write to.
        """
        try:
            yield
        except BadInput as error:
            self.error = str(error)
        except Exception as error:
            # TensorFlow 2.16: reports a full disk only in its message, Arrow by errno.
            if os.strerror(errno.ENOSPC) in str(error):
                self.error, self.no_space = f"no space left on the device that holds {folder} ({error})", True
            else:
                raise

    def to_json(self) -> str:
        """Returns one line of JSON."""
        return json.dumps(asdict(self))


@dataclass
class SplitSummary(WorkSummary):
    """Summary of a part of a split.

    Attributes:
        split: Name of the split.
        rows: Number of rows written.
        not_finite: Number of rows with NaN or infinity, by output.
        widths: Widths of outputs that may be vectors; None for shape ``[batch]``.
    """

    split: str
    rows: int = 0
    not_finite: dict[str, int] = field(default_factory=dict)
    widths: dict[str, int | None] = field(default_factory=dict)

    def count_not_finite(self, outputs: Mapping[str, Any]) -> None:
        """Counts rows with NaN or infinity in outputs, arrays of shape ``[rows, ...]``."""
        for name, values in outputs.items():
            if values.dtype.kind == "f":
                bad = ~np.isfinite(values).reshape(len(values), -1).all(axis=1)
                if bad.any():
                    self.not_finite[name] = self.not_finite.get(name, 0) + int(bad.sum())


Summary = TypeVar("Summary", bound=WorkSummary)


@dataclass(frozen=True)
class Pool:
    """Works on the parts of a step in parallel; on Spark, each is a task.

    Attributes:
        run: Calls a function for each part; returns the results, and reports the number of finished parts.
        reads_store: Whether the pool is on other hosts, and reads and writes files of the remote store itself.
        runs_here: Whether the pool is on this machine.
    """

    run: Callable[[Callable[[Any], Any], Sequence[Any], Callable[[int], None]], list[Any]]
    reads_store: bool = False
    runs_here: bool = True

    def splits(self, context: StepContext, role: str, names: Sequence[str]) -> dict[str, list[File]]:
        """Returns the Parquet files of splits of an input, for the pool.

        Raises:
            BadInput: the artifact is missing, or a split has no files.
        """
        if self.reads_store:
            return files_below(context.store, context.input(role), names)
        folder = context.local(role)
        return {name: list(example_files(folder, name)) for name in names}

    def folder(self, context: StepContext, writer: ArtifactWriter) -> OutputFolder:
        """Returns the folder that the pool writes to."""
        return OutputFolder(writer.parts(), context.store) if self.reads_store else OutputFolder(str(writer.path))


@contextlib.contextmanager
def step_pool(context: StepContext, default_master: str | None = None) -> Iterator[Pool]:
    """Starts the step's pool: processes on this machine, or the executors of a Spark connection with another master.

    The process must not have used TensorFlow yet: see :func:`local_pool`. Without a connection, Spark is started unless
    ``default_master`` names this machine.

    Raises:
        BadInput: executors have other versions of libraries, or cannot access the store.
        HopsError: the master does not answer.
    """
    master = local_master(default_master)
    if master is None:
        spark = start_spark_context(context)
        yield spark_pool(spark, context.store)
        return
    slots = master[5:].strip("[]").partition(",")[0] or "1"  # of local, local[2], local[*], local[2, 3]
    with local_pool(int(slots) if slots.isdecimal() else len(os.sched_getaffinity(0))) as pool:
        yield pool


def cluster_pool(context: StepContext) -> Pool:
    """Returns the executors of the step's cluster; :data:`IN_PROCESS` if the Spark connection's master is this machine.

    Raises:
        BadInput: executors have other versions of libraries, or cannot access the store.
        HopsError: the master does not answer.
    """
    if local_master("local[*]") is not None:
        return IN_PROCESS
    return spark_pool(start_spark_context(context), context.store)


def spark_pool(spark: Any, store: ArtifactStore) -> Pool:
    """Returns the pool of a Spark context, whose executors were checked (:func:`check_executors`)."""
    runs_here = is_local_master(spark.master)
    return Pool(partial(_run_on_spark, spark), reads_store=not (runs_here or store.is_local), runs_here=runs_here)


@contextlib.contextmanager
def local_pool(processes: int, inherited: Callable[[Any], object] | None = None) -> Iterator[Pool]:
    """Starts processes on this machine: forks of this one, which would lack the threads of a TensorFlow in use.

    An error in the ``with`` block kills them. ``inherited`` is the function that :func:`fork_parts` calls in them.
    """
    forking = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(processes, forking, initializer=_begin, initargs=(os.getpid(), inherited)) as executor:
        executor.submit(abs, 0).result()  # starts all processes
        started = list(executor._processes.values())
        try:
            yield Pool(partial(_run_here, executor))
        except BaseException:
            for process in started:
                process.kill()
            raise
        finally:
            executor.shutdown(cancel_futures=True)


def fork_parts(
    processes: int, work: Callable[[Any], object], parts: Sequence[object], report: Callable[[int], None]
) -> list[Any]:
    """Calls a function, which need not be pickled, for each part in forks of this process; returns the results.

    Raises:
        HopsError: a process was killed.
    """
    with local_pool(min(processes, len(parts)), work) as pool:
        return pool.run(_call_inherited, parts, report)


_inherited: Callable[[Any], object] | None = None


def _begin(parent: int, inherited: Callable[[Any], object] | None) -> None:
    """Begins a process of a pool."""
    global _inherited
    _inherited = inherited
    gc.freeze()  # objects of the parent whose threads are not here, such as ONNX sessions, must not be ended here
    end_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles interrupts, and ends its children


def _call_inherited(part: object) -> object:
    assert _inherited is not None
    return _inherited(part)


def _call(work: Callable[[Any], object], part: object) -> object:
    """Works on a part in a process of a pool; turns an error that cannot be sent into one that can."""
    try:
        return work(part)
    except Exception as error:
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:
            raise HopsError("".join(traceback.format_exception(error))) from None
        raise


def _run_in_process(work: Callable[[Any], Any], parts: Sequence[object], report: Callable[[int], None]) -> list[Any]:
    results: list[Any] = []
    for part in parts:
        results.append(work(part))
        report(len(results))
    return results


IN_PROCESS = Pool(_run_in_process)
"""Works on the parts in this process, in order."""


def _run_here(
    executor: ProcessPoolExecutor, work: Callable[[Any], object], parts: Sequence[object], report: Callable[[int], None]
) -> list[object]:
    futures = [executor.submit(_call, work, part) for part in parts]
    try:
        for done, future in enumerate(as_completed(futures), 1):
            future.result()
            report(done)
    except BrokenProcessPool:
        raise HopsError(
            "a process that worked on parts was killed; if memory was short, use fewer processes (in a pipeline, the "
            "Spark connection's host, local[1])"
        ) from None
    return [future.result() for future in futures]


def _run_on_spark(
    spark: Any, work: Callable[[Any], object], parts: Sequence[object], report: Callable[[int], None]
) -> list[object]:
    tracker = spark.statusTracker()

    def count_finished() -> None:
        stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
        report(sum(stage.numCompletedTasks for stage in stages if stage is not None))

    with calling_periodically(count_finished, _POLL_S), as_spark_failure():
        results: list[Any] = spark.parallelize(parts, len(parts)).map(work).collect()
    return results


def run_parts(
    pool: Pool,
    work: Callable[[Any, Any], str],
    plan: object,
    parts: Sequence[object],
    of: type[Summary],
    progress: Callable[[float, str], None] = lambda share, text: None,
) -> list[Summary]:
    """Works on parts in a pool, each by ``work`` with the common ``plan``; ``work`` returns its summary as JSON.

    Raises:
        BadInput: the input of a part is bad.
        HopsError: Spark failed, a process was killed, or the disk is full.
    """
    if not parts:
        return []
    reported = 0

    def report(done: int) -> None:
        nonlocal reported
        if done > reported:
            reported = done
            progress(0.3 + 0.6 * done / len(parts), f"{done} of {len(parts)} parts are done")

    return checked([of(**json.loads(line)) for line in pool.run(partial(work, plan), parts, report)])


def checked(summaries: list[Summary]) -> list[Summary]:
    """Returns the summaries of parts.

    Raises:
        BadInput: the input of a part is bad.
        HopsError: the disk is full.
    """
    for summary in summaries:
        if summary.error is not None:
            raise (HopsError if summary.no_space else BadInput)(summary.error)
    return summaries


def uploaded_files(summaries: Sequence[WorkSummary]) -> list[FileEntry]:
    """Returns the entries of the files that a pool wrote to a remote store."""
    return [FileEntry(**fields) for summary in summaries for fields in summary.uploaded]


def count_rows(splits: Mapping[str, Sequence[File]], summaries: Sequence[SplitSummary]) -> dict[str, RowCounts]:
    """Returns the rows of each split, read (by the files' footers) and written (by the parts' summaries)."""
    return {
        split: RowCounts(
            sum(scan.footer(file).num_rows for file in files),
            sum(summary.rows for summary in summaries if summary.split == split),
        )
        for split, files in splits.items()
    }


def remove_leftovers(folder: Path) -> None:
    """Removes files of killed Python workers, whose tasks Spark has run again."""
    for rubbish in folder.glob(".part-*"):
        rubbish.unlink()


class StagedFiles:
    """Files of a part, which get their final names if the ``with`` block ends without an error.

    If Spark runs a task twice, both write the same names.
    """

    def __init__(self) -> None:
        self._staged: list[tuple[Path, Path]] = []
        self._writers: list[Any] = []
        self._row_groups: dict[Path, tuple[Any, list[pa.RecordBatch]]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, failure: type[BaseException] | None, *_: object) -> None:
        try:
            if failure is None:
                for path in self._row_groups:
                    self._write_row_group(path)
                for writer in self._writers:
                    writer.close()
                for staging, path in self._staged:
                    staging.replace(path)
        finally:
            for writer in self._writers:
                with contextlib.suppress(Exception):  # close() fails, too, if the disk is full
                    writer.close()
            for staging, _path in self._staged:
                staging.unlink(missing_ok=True)

    def open(self, path: Path, writer: Callable[[str], object]) -> Any:
        """Opens a file with a writer that takes its path and has a ``close``; creates its folder."""
        path.parent.mkdir(parents=True, exist_ok=True)
        staging = path.with_name(f".{path.name}.{os.getpid()}")
        self._staged.append((staging, path))
        self._writers.append(writer(str(staging)))
        return self._writers[-1]

    def write_rows(self, path: Path, batch: pa.RecordBatch, **options: object) -> None:
        """Adds rows to a Parquet file, in large row groups; ``options`` are those of a new file's writer.

        Floats have no dictionary: most are different, and it would take seven times as long to find that out.
        """
        if path not in self._row_groups:
            others = [field.name for field in batch.schema if not pa.types.is_floating(field.type)]
            opening = partial(parquet_writer, schema=batch.schema, **{"use_dictionary": others, **options})
            self._row_groups[path] = self.open(path, opening), []
        group = self._row_groups[path][1]
        group.append(batch)
        if sum(each.num_rows for each in group) >= ROW_GROUP_ROWS or sum(each.nbytes for each in group) >= _GROUP_BYTES:
            self._write_row_group(path)

    def _write_row_group(self, path: Path) -> None:
        writer, group = self._row_groups[path]
        if group:
            writer.write_table(pa.Table.from_batches(group))
            group.clear()


def use_one_thread() -> None:
    """Restricts TensorFlow to one thread, as the pool works on a part on each core."""
    import tensorflow as tf

    with contextlib.suppress(RuntimeError):  # TensorFlow is already in use in this process
        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(1)
