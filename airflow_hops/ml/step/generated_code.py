"""Source files that TensorFlow generates in the temporary folder."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

_MODULE_PREFIX = "__autograph_generated_file"


def remove_generated_code() -> None:
    """Removes the files of the functions that AutoGraph has converted in this process.

    It makes each a module of its own. Its source goes with Python's exit, which a forked rank or step never comes to;
    its bytecode stays in any case.
    """
    for name, module in list(sys.modules.items()):
        if name.startswith(_MODULE_PREFIX):
            for path in filter(None, (module.__file__, module.__cached__)):
                with contextlib.suppress(OSError):
                    Path(path).unlink()
