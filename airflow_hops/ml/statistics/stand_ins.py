"""What stands in for parts of TFDV and tfx_bsl while this package has TFDV's generators work."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def in_place_of(theirs: Any, ours: Any, module: Any) -> Iterator[None]:
    """Within its ``with`` block a module has ours under the name of theirs; afterwards it has theirs.

    Args:
        theirs: The module's own function or class, as it was when it was imported.
        ours: What is called instead.
        module: Where the generators look for it.
    """
    setattr(module, theirs.__name__, ours)
    try:
        yield
    finally:
        setattr(module, theirs.__name__, theirs)
