"""Operator that packs many small files into a few large ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_hops.core.sources.sources import FileSource
from airflow_hops.operators.spark import SparkOperator
from airflow_hops.runner.arguments import Count, holds_late
from airflow_hops.runner.connections import state_of_sources
from airflow_hops.runner.runtime import RuntimeHook

if TYPE_CHECKING:
    from airflow.sdk import Context

__all__ = ["FileSource", "PackOperator"]


class PackOperator(SparkOperator):
    """Packs many small files into tar files of similar size, with an index, on this machine or on Spark.

    The artifact ``packed_files`` holds ``shards/*.tar`` in the layout of `WebDataset
    <https://github.com/webdataset/webdataset>`_, and ``index/*.parquet`` with each file's path, place and SHA-256.

    Example::

        packed = PackOperator(task_id="pack", source="s3://photos/train")  # s3://photos/train/<class>/….jpg
        images = PrepareImagesOperator(
            task_id="images", sources={"train": packed.output}, height=224, width=224, channels=3
        )

    Args:
        source: The files: a :class:`~airflow_hops.core.sources.sources.FileSource`, its URI, or its fields.
            (templated)
        shard_mb: Size at which a shard is full, in megabytes.
        **kwargs: As :class:`~airflow_hops.operators.spark.SparkOperator`.
    """

    entry = "airflow_hops.extensions.images.ml.pack:run"
    output_kind = "packed_files"
    param_arguments = ("source", "shard_mb")
    template_fields: Sequence[str] = (*SparkOperator.template_fields, "source")

    def __init__(self, *, source: FileSource | str | Mapping[str, Any], shard_mb: Count = 256, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.shard_mb = shard_mb
        self.check_arguments(PackOperator, source=source)
        self.source = source if holds_late(source) else FileSource.from_value("source", source).to_dict()

    def step_params(self, context: Context) -> dict[str, Any]:
        """Returns the fields of the source, and the size of the packed files."""
        source = FileSource.from_value("source", self.source).to_dict()
        return {**super().step_params(context), "source": source}

    def step_cache_key_parts(self, hook: RuntimeHook) -> dict[str, str]:
        """Adds the state of the files, so that changed files are packed again."""
        state = state_of_sources({"source": FileSource.from_value("source", self.source)})
        return {**super().step_cache_key_parts(hook), "source": state}
