"""A version that workers answer for."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import grpc

from airflow_hops.serving.errors import ServingError
from airflow_hops.serving.models.servable import Call, Reply, Servable
from airflow_hops.serving.models.workers.frames import PeerDied, PeerGone
from airflow_hops.serving.models.workers.pool import WorkerPool
from airflow_hops.serving.models.workers.worker import Worker

_MAX_RETRIES = 2
_REFUSED_FOR_S = 60.0
_END_S = 1.0


class WorkerServable(Servable):
    """A version that a pool of workers answers for.

    A request whose worker ends is tried again, for inference changes nothing: alone on a worker, so that a request
    that ends workers takes no other with it twice. One that goes on ending them is refused, and refused at once when it
    comes back within a minute.

    Args:
        model: Model name.
        version: Version number.
        folder: Its folder.
        pool: Its workers.
        on_close: Called when they are no more.
    """

    def __init__(
        self, model: str, version: int, folder: Path, pool: WorkerPool, on_close: Callable[[WorkerServable], None]
    ) -> None:
        super().__init__(model, version, os.fspath(folder), pool.signature_defs)
        self.pool = pool
        self._on_close = on_close
        self._fatal = _FatalRequests()

    def answer(self, call: Call) -> Reply:
        """Answers a request."""
        self._fatal.check(call)
        deaths = 0
        while True:
            worker = self.pool.take(call.deadline_s, alone=deaths > 0)
            try:
                return worker.answer(call)
            except PeerDied:
                worker.process.ended.wait(_END_S)
                deaths += not worker.process.with_zygote
                if deaths > _MAX_RETRIES:
                    raise self._fatal.add(call, worker) from None
            except PeerGone:
                pass  # it never had the request
            finally:
                self.pool.give(worker)

    def _free(self) -> None:
        self.pool.close()
        self._on_close(self)


class _FatalRequests:
    """Requests that have ended one worker after another."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[int, tuple[float, str]] = {}

    def add(self, call: Call, worker: Worker) -> ServingError:
        """Takes in a request and the last worker that it ended; returns what the client is told."""
        message = (
            f"The request ended {_MAX_RETRIES + 1} workers one after another, the last with {worker.process.end}; "
            f"it is not tried again"
        )
        now_s = time.monotonic()
        with self._lock:
            self._known = {key: known for key, known in self._known.items() if known[0] > now_s}
            self._known[hash(call.message)] = now_s + _REFUSED_FOR_S, message
        return ServingError(grpc.StatusCode.INTERNAL, message)

    def check(self, call: Call) -> None:
        """Refuses a request that is known.

        Raises:
            ServingError: It is.
        """
        if self._known:
            until_s, message = self._known.get(hash(call.message), (0.0, ""))
            if time.monotonic() < until_s:
                raise ServingError(grpc.StatusCode.INTERNAL, message)
