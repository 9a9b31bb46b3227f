"""Images: preparation for training, and packing of many small files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_hops.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from airflow_hops.extensions.images.core.images import ImageSource
    from airflow_hops.extensions.images.ml.packed import PackedFiles
    from airflow_hops.extensions.images.operators.images import PrepareImagesOperator
    from airflow_hops.extensions.images.operators.pack import PackOperator

__all__ = ["ImageSource", "PackOperator", "PackedFiles", "PrepareImagesOperator"]

__getattr__ = lazy_names(
    __name__,
    {
        ".core.images": "ImageSource",
        ".ml.packed": "PackedFiles",
        ".operators.images": "PrepareImagesOperator",
        ".operators.pack": "PackOperator",
    },
)
