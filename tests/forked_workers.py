"""Workers of pytest-xdist as forks of the process that runs them: what takes long to import is imported once."""

from __future__ import annotations

import atexit
import contextlib
import importlib
import os
import signal
import sys
from typing import Any

from execnet import gateway_io
from execnet.gateway_base import Popen2IO

from airflow_hops.core.processes.forks import fork
from airflow_hops.core.processes.garbage import uncollected


class ForkedWorker(gateway_io.Popen2IOMaster):
    """Takes the place of a Python that execnet starts: a fork that has its stdin and stdout."""

    def __init__(self, args: Any, execmodel: Any) -> None:
        theirs_in, ours_out = os.pipe()
        ours_in, theirs_out = os.pipe()

        def work() -> None:
            os.dup2(theirs_in, 0)
            os.dup2(theirs_out, 1)
            for descriptor in (theirs_in, theirs_out, ours_in, ours_out):
                os.close(descriptor)
            sys.stdin = os.fdopen(0, closefd=False)
            exec(eval(sys.stdin.readline()), {"__name__": "__main__"})  # as execnet's popen_bootstrapline
            atexit._run_exitfuncs()

        self._pid = fork(work)
        os.close(theirs_in)
        os.close(theirs_out)
        Popen2IO.__init__(self, os.fdopen(ours_out, "wb", 0), os.fdopen(ours_in, "rb", 0), execmodel)

    def wait(self) -> int | None:
        with contextlib.suppress(ChildProcessError):
            return os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        return None

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)


def fork_workers(*modules: str) -> None:
    """Has workers forked from now on, of this process with these modules in it."""
    with uncollected():
        for module in modules:
            importlib.import_module(module)
    gateway_io.Popen2IOMaster = ForkedWorker  # type: ignore[misc]
