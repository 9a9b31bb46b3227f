"""Failures of ranks, in words."""

from __future__ import annotations

import contextlib
import re
import signal
from collections.abc import Sequence
from pathlib import Path

LOG_FOLLOWS = "The last lines of its log:"
_LINE_CHARACTERS = 500


def describe_exit(code: int | None, oom_kills: int | None = None) -> str:
    """How a rank's process ended.

    Args:
        code: Its exit code, or the negative number of a signal; None where only its host is known to be gone.
        oom_kills: How many processes the kernel had killed for want of memory when the rank began; None where that
            was another host's kernel.
    """
    if code is None:
        return "the loss of its host"
    if code >= 0:
        return f"exit code {code} before it was done"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    if name == "SIGKILL":
        struck = oom_kills is not None and count_oom_kills() > oom_kills
        why = (
            "the kernel's out-of-memory killer was active in the meantime"
            if struck
            else "it was killed, possibly by a container's memory limit"
        )
        return f"SIGKILL ({why}; if memory is short, give the gang fewer ranks or smaller batches)"
    return {"SIGSEGV": "SIGSEGV (a crash in native code)", "SIGABRT": "SIGABRT (native code gave up)"}.get(name, name)


def quote_log(lines: Sequence[str]) -> str:
    """The last lines of a rank's log, for an error; long ones are cut in the middle."""
    if not lines:
        return "Its log is empty."
    return f"{LOG_FOLLOWS}\n" + "\n".join(f"  {_shorten(line)}" for line in lines)


def _shorten(line: str) -> str:
    half = _LINE_CHARACTERS // 2
    return line if len(line) <= _LINE_CHARACTERS else f"{line[:half]} … {line[-half:]}"


def count_oom_kills() -> int:
    """How many processes this machine's kernel has killed for want of memory since boot."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(re.findall(r"^oom_kill (\d+)$", Path("/proc/vmstat").read_text(), re.MULTILINE)[0])
    return 0
