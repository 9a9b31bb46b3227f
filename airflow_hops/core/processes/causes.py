"""Causes of errors that are neither in the input nor in the code."""

from __future__ import annotations

import errno
import socket

from airflow_hops.core.errors import Cause, HopsError
from airflow_hops.core.processes.temporary_folders import full_place

_NO_ANSWER = {errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ETIMEDOUT}
# Names of base classes in requests, botocore, urllib3, aiohttp, redis: none of them needs to be imported. Python's own
# ConnectionError is left out, since a pipe to a killed process of this machine breaks with it, too.
_NO_ANSWER_NAMES = {
    "ClientConnectionError",
    "ConnectionError",
    "ConnectTimeout",
    "ConnectTimeoutError",
    "NewConnectionError",
}


def cause_of(error: BaseException) -> Cause | None:
    """Returns the cause of an error, or None if the input or the code may be the cause.

    Libraries raise errors of their own after those of the network and of files, so that all errors before it count.
    """
    seen: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in seen:
        cause = _own_cause(current)
        if cause is not None:
            return cause
        seen.append(current)
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
    return None


def _own_cause(error: BaseException) -> Cause | None:
    if isinstance(error, HopsError) and error.cause is not None:
        return error.cause
    if full_place(error) is not None:
        return "full"
    is_dns = isinstance(error, socket.gaierror) and error.errno == socket.EAI_AGAIN
    is_system = isinstance(error, OSError) and not isinstance(error, socket.gaierror) and error.errno in _NO_ANSWER
    names = {each.__name__ for each in type(error).__mro__ if each.__module__ != "builtins"}
    return "unreachable" if is_dns or is_system or names & _NO_ANSWER_NAMES else None
