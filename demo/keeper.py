"""Runs a command in a process group of its own, and ends the group once whoever asked for it is gone or done with it.

Usage: ``keeper.py GRACE_S COMMAND [ARGUMENT ...]``. Standard input is the line to the one who asked: nothing is read
from it, and it closes with him, however he ends. Then the group gets SIGTERM, and what is left of it after ``GRACE_S``
seconds SIGKILL. When the command ends by itself, the rest of its group ends too; the exit code is the command's.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time

LOOK_S = 0.1


def main(grace_s: float, command: list[str]) -> int:
    """Runs the command; returns its exit code: 128 and the signal's number where one ended it, 127 without a start."""
    try:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    except OSError as error:
        print(f"{command[0]} cannot be started: {error}", file=sys.stderr)
        return 127

    def ended() -> bool:
        # Not waited for yet, so that the group's number stays its own until all of the group has been ended.
        return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt):
        while not ended() and not select.select([sys.stdin], [], [], LOOK_S)[0]:
            pass
    if not ended():
        os.killpg(process.pid, signal.SIGTERM)
    insist_at = time.monotonic() + grace_s
    while not ended() and time.monotonic() < insist_at:
        time.sleep(LOOK_S)
    os.killpg(process.pid, signal.SIGKILL)
    code = process.wait()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), sys.argv[2:]))
