"""Removes source files that TensorFlow generates in the temporary folder."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

_MODULE_PREFIX = "__autograph_generated_file"


def remove_generated_code() -> None:
    """Removes the files of functions that AutoGraph converted in this process.

    Each function becomes a module. Its source would be removed when Python exits, which forked ranks and steps skip;
    its bytecode would stay in any case.
    """
    for name, module in list(sys.modules.items()):
        if name.startswith(_MODULE_PREFIX):
            for path in filter(None, (module.__file__, module.__cached__)):
                with contextlib.suppress(OSError):
                    Path(path).unlink()
