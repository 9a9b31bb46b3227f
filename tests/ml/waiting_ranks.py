"""Ranks that are started once and do what tests send them, one function after the other."""

from __future__ import annotations

import multiprocessing.forkserver
import os
import signal
import tempfile
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Client, Listener
from pathlib import Path
from typing import Any

import pytest

_ANSWER_S = 600.0


class WaitingRanks:
    """A gang of Horovod's whose ranks wait for what they are to do.

    ``ranks(function, *arguments)`` calls the function on every rank, and answers what it returned, by rank. What it
    raises on one, it raises here; ``ranks.errors(…)`` are the messages of what it raises, by rank.

    Args:
        size: Number of ranks.
        forking: Where their process is forked from: TensorFlow must not have begun in it.
    """

    def __init__(self, size: int, forking: Any) -> None:
        self._logs = tempfile.TemporaryDirectory(prefix="ranks-")
        with Listener(family="AF_UNIX") as listener:
            self._gang = forking.Process(target=run_waiting_gang, args=(size, listener.address, self._logs.name))
            self._gang.start()
            answered = [listener.accept() for _ in range(size)]
        ranks = sorted((*connection.recv(), number) for number, connection in enumerate(answered))
        self._connections = [answered[number] for _, _, number in ranks]
        self._pids = [pid for _, pid, _ in ranks]
        self._signal(signal.SIGSTOP)

    def __call__(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> list[Any]:
        """What the function returned, by rank."""
        answers = self._ask(partial(function, *arguments, **named))
        for _, error in answers:
            if error is not None:
                raise error
        return [value for value, _ in answers]

    def errors(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> list[str]:
        """The messages of the errors that the function raised, by rank; ``no error`` where it raised none."""
        answers = self._ask(partial(function, *arguments, **named))
        return ["no error" if error is None else str(error) for _, error in answers]

    def end(self) -> None:
        """Ends the ranks."""
        self._signal(signal.SIGCONT)
        for connection in self._connections:
            connection.close()
        self._gang.join(10)
        self._gang.kill()
        self._logs.cleanup()

    def _signal(self, number: signal.Signals) -> None:
        # Between calls they stand still: Horovod's thread in each would look for work a thousand times a second.
        for pid in self._pids:
            os.kill(pid, number)

    def _ask(self, call: Callable[[], Any]) -> list[tuple[Any, Exception | None]]:
        self._signal(signal.SIGCONT)
        for connection in self._connections:
            connection.send(call)
        answers = []
        for rank, connection in enumerate(self._connections):
            assert connection.poll(_ANSWER_S), f"rank {rank} waits for another, or does not end: {answers}"
            answers.append(connection.recv())
        self._signal(signal.SIGSTOP)
        return answers


def run_waiting_gang(size: int, address: str, logs: str) -> None:
    """The ranks' parent."""
    from airflow_hops.runtime.gang import LocalRanks, run_gang

    run_gang(partial(_serve, address), size, logs=Path(logs), launcher=LocalRanks(size), stall_timeout_s=3600)


def _serve(address: str, placement: Any, channel: Any) -> None:
    """What a rank does: one thread, and graphs as they are, for optimizing one takes longer than its few steps."""
    import horovod.tensorflow as hvd
    import tensorflow as tf

    # Gloo counts the seconds in which a rank stands still as seconds in which its peer did not answer (30 are allowed).
    os.environ["HOROVOD_GLOO_TIMEOUT_SECONDS"] = "3600"
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    hvd.init()
    with Client(address, family="AF_UNIX") as connection:
        connection.send((placement.rank, os.getpid()))
        while True:
            try:
                call = connection.recv()
            except EOFError:
                hvd.shutdown()
                return
            try:
                answer = call(), None
            except Exception as error:
                answer = None, error
            connection.send(answer)


def forkserver() -> Any:
    """Forks processes in which what trains is imported, but TensorFlow has not begun."""
    forking = multiprocessing.get_context("forkserver")
    forking.set_forkserver_preload(
        ["airflow_hops.processes.arrow_hotfix", "airflow_hops.runtime.train", "tensorflow_data_validation"]
    )
    with pytest.MonkeyPatch.context() as patch:  # Python 3.11 passes no sys.path on, and says nothing
        patch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
        multiprocessing.forkserver.ensure_running()
    return forking
