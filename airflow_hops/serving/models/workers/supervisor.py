"""Opens versions in workers, scales them, and says how they are."""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from airflow_hops.serving.errors import ServingError
from airflow_hops.serving.models.model_options import ModelOptions
from airflow_hops.serving.models.opened_version import OpenedVersion
from airflow_hops.serving.models.servable import Servable
from airflow_hops.serving.models.workers.autoscaling import ScalingOptions
from airflow_hops.serving.models.workers.frames import PeerGone
from airflow_hops.serving.models.workers.launcher import Launcher, threads_each
from airflow_hops.serving.models.workers.pool import WorkerPool
from airflow_hops.serving.models.workers.process import Assignment
from airflow_hops.serving.models.workers.servable import WorkerServable
from airflow_hops.serving.models.workers.worker import Worker

_SAMPLE_INTERVAL_S = 0.1
_METRICS_TIMEOUT_S = 1.0


class WorkerSupervisor:
    """Opens versions, each in worker processes of its own.

    Args:
        options: How models are opened; threads that it leaves to TensorFlow are the cores, shared among the workers.
        scaling: How many workers a version has.
    """

    def __init__(self, options: ModelOptions, scaling: ScalingOptions) -> None:
        threads = threads_each(scaling.bounds.maximum)
        self._options = replace(options, intra_op_threads=options.intra_op_threads or threads)
        self._scaling = scaling
        self._launcher = Launcher(threads)
        self._lock = threading.Lock()
        self._servables: list[WorkerServable] = []
        self._stopped = threading.Event()
        if scaling.bounds.minimum < scaling.bounds.maximum:
            threading.Thread(target=self._scale, name="autoscaler", daemon=True).start()

    def open(self, model: str, version: int, folder: Path) -> Servable:
        """Opens a version; returns when all the workers that it has at least have opened it.

        Args:
            model: Model name.
            version: Version number.
            folder: Its folder.

        Raises:
            ServingError: It does not load.
        """
        started_s = time.monotonic()
        start = functools.partial(Worker, self._launcher, Assignment(model, version, folder, self._options))
        pool = WorkerPool(OpenedVersion(model, version, folder), start, self._scaling)
        servable = WorkerServable(model, version, folder, pool, self._closed)
        servable.load_s = time.monotonic() - started_s
        with self._lock:
            self._servables.append(servable)
        return servable

    def close(self) -> None:
        """Ends all workers; what they have in flight is lost."""
        self._stopped.set()
        with self._lock:
            for servable in self._servables:
                servable.pool.abandon()
        self._launcher.close()

    def report(self) -> dict[str, Any]:
        """Returns what ``GET /v1/workers`` answers."""
        models: dict[str, dict[str, Any]] = {}
        for servable in self._open_ones():
            models.setdefault(servable.model, {})[str(servable.version)] = servable.pool.report()
        return {"zygote": self._launcher.pid, "models": models}

    def metrics(self) -> Iterator[tuple[dict[str, str], Any]]:
        """Yields what workers count: labels of the worker, and one of ``prometheus_client``'s metrics."""
        for servable in self._open_ones():
            for worker in servable.pool.workers:
                labels = {"model_name": servable.model, "version": str(servable.version)}
                labels["worker"] = str(worker.process.pid)
                # One that has just ended, or that is too busy to answer, is left out.
                with contextlib.suppress(ServingError, PeerGone):
                    for metric in worker.metrics(_METRICS_TIMEOUT_S):
                        yield labels, metric

    def _open_ones(self) -> list[WorkerServable]:
        with self._lock:
            return sorted(self._servables, key=lambda servable: (servable.model, servable.version))

    def _closed(self, servable: WorkerServable) -> None:
        with self._lock:
            self._servables.remove(servable)

    def _scale(self) -> None:
        while not self._stopped.wait(_SAMPLE_INTERVAL_S):
            for servable in self._open_ones():
                servable.pool.scale()
