"""Errors that steps and operators raise; their messages show no secrets."""

from __future__ import annotations

import sys
from typing import Literal

from airflow_hops.core.redaction import redacted

Cause = Literal["full", "lost", "preempted", "unreachable"]
"""Causes of errors that are neither in the input nor in the code: full disk, lost machine, silent service."""


_DAG_MODULES = "unusual_prefix_"
"""Beginning of the names that Airflow gives to the modules of DAG files."""


def dag_place() -> str | None:
    """Returns file and line of the DAG file that Airflow is reading, ``file:line``; None outside of one."""
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        if str(frame.f_globals.get("__name__")).startswith(_DAG_MODULES):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
    return None


def add_place(error: BaseException) -> None:
    """Adds the line of the DAG file to an error, of whose traceback Airflow shows the innermost two calls only."""
    if (place := dag_place()) is not None and not hasattr(error, "__notes__"):
        error.add_note(f"in {place}")


class HopsError(Exception):
    """An error that a retry may fix (a killed rank, a server that does not answer).

    Its message names addresses and values of connections, without their secrets.
    """

    retryable = True
    cause: Cause | None = None

    def __str__(self) -> str:
        return redacted(super().__str__())


class BadInput(HopsError):
    """An input of the user cannot be used, and a retry would fail again.

    The message names the file, the field, the value and the expected value.
    """

    retryable = False

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        add_place(self)


class Preempted(HopsError):
    """Its machine was asked to end the work, and a retry goes on from what was kept, later than where it began."""

    cause = "preempted"


class MachineLost(HopsError):
    """The machine that did the work is lost, or is about to go."""

    cause = "lost"


class UnreadableFile(BadInput, ValueError):
    """A file does not contain UTF-8 text or JSON as expected."""
