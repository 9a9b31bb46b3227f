"""Ranks that are started once and do what tests send them, one function after the other."""

from __future__ import annotations

import contextlib
import faulthandler
import multiprocessing
import os
import signal
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

_ANSWER_S = 180.0


class WaitingRanks:
    """A gang of Horovod's whose ranks wait for what they are to do.

    ``ranks(function, *arguments)`` calls the function on every rank, and answers what it returned, by rank. What it
    raises on one, it raises here; ``ranks.errors(…)`` are the messages of what it raises, by rank. Ranks of which one
    does not answer are ended, and the next call begins with others. Ranks that wait take a sixth of a core, since
    Horovod goes on looking for work; after :meth:`rest` they take nothing, until the next call.

    Args:
        size: Number of ranks.
        forking: Where their process is forked from: TensorFlow must not have begun in it.
    """

    def __init__(self, size: int, forking: Any) -> None:
        self._size, self._forking = size, forking
        self._logs = tempfile.TemporaryDirectory(prefix="ranks-")
        self._gang: Any = None
        self._connections: Sequence[Connection] = ()
        self._pids: list[int] = []

    def __call__(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> list[Any]:
        """Returns the function's return values, by rank."""
        answers = self._ask(partial(function, *arguments, **named))
        for _, error in answers:
            if error is not None:
                raise error
        return [value for value, _ in answers]

    def errors(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> list[str]:
        """The messages of the errors that the function raised, by rank; ``no error`` where it raised none."""
        answers = self._ask(partial(function, *arguments, **named))
        return ["no error" if error is None else str(error) for _, error in answers]

    def rest(self) -> None:
        """Has the ranks leave Horovod until the next call."""
        if self._gang is not None:
            self._ask(None)

    def end(self) -> None:
        """Ends the ranks, if there are any."""
        if self._gang is None:
            return
        for connection in self._connections:
            connection.close()
        self._gang.join(60)
        self._gang.kill()
        self._gang, self._connections, self._pids = None, (), []

    def _start(self) -> None:
        self._connections, theirs = zip(*(self._forking.Pipe() for _ in range(self._size)), strict=True)
        self._gang = self._forking.Process(target=run_waiting_gang, args=(theirs, self._logs.name))
        self._gang.start()
        for each in theirs:
            each.close()
        self._pids = self._answers("is not there")

    def _ask(self, call: Callable[[], Any] | None) -> list[tuple[Any, Exception | None]]:
        try:
            if self._gang is None:
                self._start()
            for connection in self._connections:
                connection.send(call)
            return self._answers("waits for another, or does not end")
        except BaseException:
            self.end()
            raise

    def _answers(self, otherwise: str) -> list[Any]:
        answers: list[Any] = []
        for rank, connection in enumerate(self._connections):
            if not connection.poll(_ANSWER_S):
                for pid in self._pids:  # which has them write where each thread stands
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGABRT)
                time.sleep(2)
                pytest.fail(f"rank {rank} {otherwise}: {answers}\n{self._said()}")
            answers.append(connection.recv())
        return answers

    def _said(self) -> str:
        """The last that the ranks have written."""
        logs = {log.name: log.read_text().splitlines() for log in sorted(Path(self._logs.name).rglob("*.log"))}
        return "\n".join(
            line for name, lines in logs.items() for line in [name, *lines[-60:]] if "Extension modules" not in line
        )


def run_waiting_gang(connections: Sequence[Connection], logs: str) -> None:
    """The ranks' parent."""
    from airflow_hops.ml.training.gang import LocalRanks, run_gang

    size = len(connections)
    run_gang(partial(_serve, connections), size, logs=Path(logs), launcher=LocalRanks(size), stall_timeout_s=86_400)


def _serve(connections: Sequence[Connection], placement: Any, channel: Any) -> None:
    """Serves calls in a rank, in one thread."""
    import horovod.tensorflow as hvd
    import tensorflow as tf

    faulthandler.enable()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    connection = connections[placement.rank]
    connection.send(os.getpid())
    while True:
        try:
            call = connection.recv()
        except EOFError:
            hvd.shutdown()
            return
        if call is None:
            hvd.shutdown()
        elif not hvd.is_initialized():
            hvd.init()
        try:
            answer = call() if call else None, None
        except Exception as error:
            answer = None, error
        connection.send(answer)


def forkserver() -> Any:
    """Forks processes in which TensorFlow, Horovod and the model server are imported, but TensorFlow has not begun."""
    forking = multiprocessing.get_context("forkserver")
    server = [f"airflow_hops.serving.{name}" for name in ("models.saved_model", "server")]
    forking.set_forkserver_preload(["horovod.tensorflow", "skl2onnx", *server])
    return forking
