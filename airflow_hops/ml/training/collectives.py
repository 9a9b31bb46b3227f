"""Horovod's collectives for TensorFlow, or those of a single process if Horovod is not installed.

A training of one process uses Horovod for its size and rank alone, so it needs no Horovod. A training on several ranks
does: :func:`check_horovod`.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

from airflow_hops.core.errors import BadInput
from airflow_hops.core.training.options import HOROVOD_MISSING

_ONE_PROCESS = SimpleNamespace(
    **{name: name for name in ("Average", "Sum", "Adasum")},
    Compression=SimpleNamespace(none=None, fp16=None),
    init=lambda: None,
    is_initialized=lambda: True,
    size=lambda: 1,
    rank=lambda: 0,
)
"""The part of ``horovod.tensorflow`` that a training of one process uses."""


def has_horovod() -> bool:
    """Returns whether Horovod is installed."""
    return find_spec("horovod") is not None


def check_horovod() -> None:
    """Checks that Horovod is installed.

    Raises:
        BadInput: it is not; the message has the command that builds it.
    """
    if not has_horovod():
        raise BadInput(f"this training needs Horovod: {HOROVOD_MISSING.format(runtime=sys.prefix)}")


hvd: Any = import_module("horovod.tensorflow") if has_horovod() else _ONE_PROCESS
