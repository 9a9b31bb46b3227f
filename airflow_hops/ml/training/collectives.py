"""Horovod's collectives for TensorFlow, or those of a single process if Horovod is not installed.

A training of one process uses Horovod for its size and rank alone, so it needs no Horovod. A training on several ranks
does: :func:`check_horovod`.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from airflow_hops.core.errors import BadInput
from airflow_hops.core.training.options import HOROVOD_MISSING


class _OneProcess:
    """The part of ``horovod.tensorflow`` that a training of one process uses."""

    Average, Sum, Adasum = "Average", "Sum", "Adasum"

    class Compression:
        """Compressions of gradients, which one process exchanges with nobody."""

        none = fp16 = None

    @staticmethod
    def init() -> None:
        """Does nothing: there are no other ranks."""

    @staticmethod
    def is_initialized() -> bool:
        """Returns whether collectives can be used."""
        return True

    @staticmethod
    def size() -> int:
        """Returns the number of ranks."""
        return 1

    @staticmethod
    def rank() -> int:
        """Returns the number of this rank."""
        return 0


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


hvd: Any = import_module("horovod.tensorflow") if has_horovod() else _OneProcess
