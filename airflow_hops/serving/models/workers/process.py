"""The worker process: opens one version and answers what comes over its connections."""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import socket
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

import grpc

from airflow_hops.serving import log_lines
from airflow_hops.serving.errors import ServingError
from airflow_hops.serving.models.formats import open_model
from airflow_hops.serving.models.model_options import ModelOptions
from airflow_hops.serving.models.servable import Reply, Servable
from airflow_hops.serving.models.workers.frames import PeerGone, receive_request, send_reply
from airflow_hops.serving.monitoring.metrics import REGISTRY

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Assignment:
    """The version that a worker serves.

    Attributes:
        model: Model name.
        version: Version number.
        folder: Its folder.
        options: How it is opened.
    """

    model: str
    version: int
    folder: Path
    options: ModelOptions


def run_worker(assignment: Assignment, control: socket.socket) -> None:
    """Opens the version, says so, and serves until the control connection ends; then the process ends, too.

    Args:
        assignment: What to serve.
        control: The first answer on it says whether the version has opened, and with which signatures; every byte
            that the server sends on it brings the descriptor of a new connection.
    """
    who = f"{assignment.model} version {assignment.version}".replace("%", "%%")
    log_lines.configure(
        format=f"%(asctime)s %(levelname)s %(name)s: worker %(process)d of {who}: %(message)s",
        stream=sys.stderr,
    )
    with contextlib.suppress(OSError):  # short of memory, the kernel shall end a worker, which is replaced
        Path("/proc/self/oom_score_adj").write_text("500")
    with contextlib.suppress(PeerGone):
        try:
            servable = open_model(assignment.model, assignment.version, assignment.folder, assignment.options)
        except Exception as error:
            send_reply(control, _refusal(error))
            os._exit(0)
        send_reply(control, Reply(servable.signature_defs, 0))
        while descriptors := socket.recv_fds(control, 1, 1)[1]:
            connection = socket.socket(fileno=descriptors[0])
            threading.Thread(target=_answer_all, args=(servable, connection), name="connection", daemon=True).start()
    os._exit(0)


def _answer_all(servable: Servable, connection: socket.socket) -> None:
    """Answers the requests of one connection, one after another, until the server closes it."""
    with connection, contextlib.suppress(PeerGone):
        while True:
            call = receive_request(connection)
            try:
                reply: Reply | ServingError = servable.answer(call) if call else _metrics()
            except Exception as error:
                reply = _refusal(error)
            send_reply(connection, reply)


def _metrics() -> Reply:
    """What the parts of the server count that run in a worker: ``prometheus_client``'s metrics, pickled."""
    found = [metric for metric in REGISTRY.collect() if not metric.name.startswith("process_")]
    return Reply(pickle.dumps(found), 0)


def _refusal(error: Exception) -> ServingError:
    if isinstance(error, ServingError):
        return error
    log.error("%s", error, exc_info=error)
    return ServingError(grpc.StatusCode.INTERNAL, f"{type(error).__name__}: {error}")
