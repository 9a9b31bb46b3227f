"""Labelled images, and many small files packed into shards; each name is imported when it is first used."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_hops.extensions.images.ml.packed import PackedFiles

__all__ = ["PackedFiles"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("airflow_hops.extensions.images.ml.packed"), name)
