"""Operator that prepares images as TFRecords of one size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import XComArg

from airflow_hops.extensions.images.core.images import ImageOptions, ImageSource, packed_role
from airflow_hops.operators.links import DATA_LINK, LINEAGE_LINK
from airflow_hops.operators.spark import SparkOperator
from airflow_hops.runner.arguments import Count, Share, is_late, is_output, rendered_mapping
from airflow_hops.runner.connections import state_of_sources
from airflow_hops.runner.runtime import RuntimeHook

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_hops.core.steps.protocol import StepSpec

__all__ = ["ImageSource", "PrepareImagesOperator"]


class PrepareImagesOperator(SparkOperator):
    """Decodes, resizes and crops labelled images, on this machine or on Spark, and rejects files that are not images.

    The artifact ``transformed_examples`` holds ``<split>/*.tfrecord`` and ``<split>/*.parquet``, the graph from encoded
    images to the model's input in ``transform_graph/``, which becomes part of the model, and ``features.json``. Train
    on it. Since it also holds the encoded images, ``EvaluateOperator`` and ``InfraValidateOperator`` take it as
    ``examples``.

    Example::

        images = PrepareImagesOperator(
            task_id="images",
            sources={"train": "s3://photos/train", "test": "s3://photos/test"},  # with a folder for each class
            height=224,
            width=224,
            channels=3,
        )

    Args:
        sources: The source of each split's images, by the split's name: an
            :class:`~airflow_hops.extensions.images.ImageSource`, its URI, its fields, or the output of a
            ``PackOperator``. One split must be ``train``. (templated)
        height: Height of the prepared images, in pixels.
        width: Width of the prepared images, in pixels.
        channels: 1 (greyscale), 3 (RGB) or 4 (RGB with opacity); other images are converted.
        fit: ``cover`` resizes until both sides are covered, and crops the rest. ``stretch`` resizes each side by
            itself. ``crop`` takes the middle without resizing, and rejects smaller images.
        mean: By channel, subtracted from pixels in [0, 1]; None for the mean of the training images.
        scale: By channel, divides the difference; None for the standard deviation of the training images.
        classes: Names of the classes in the order of their numbers; None for the names or numbers of the sources,
            sorted.
        label: Name of the label column.
        eval_percent: Share of the images of ``train`` that go to the split ``eval``, by a hash of their key.
        encoding: ``png``, which is lossless, or ``jpeg``, which takes less space.
        jpeg_quality: 1 to 100.
        max_rejected: Share of a source's images, 0 to 1, that a single reason may reject; more fail the task.
        **kwargs: As :class:`~airflow_hops.operators.spark.SparkOperator`.
    """

    entry = "airflow_hops.extensions.images.ml.stage:run"
    output_kind = "transformed_examples"
    template_fields: Sequence[str] = (*SparkOperator.template_fields, "sources")
    operator_extra_links = (DATA_LINK, LINEAGE_LINK)

    def __init__(
        self,
        *,
        sources: Mapping[str, ImageSource | str | XComArg | Mapping[str, Any]],
        height: Count,
        width: Count,
        channels: int,
        fit: str = "cover",
        mean: Sequence[float] | None = None,
        scale: Sequence[float] | None = None,
        classes: Sequence[str] | None = None,
        label: str = "label",
        eval_percent: int = 10,
        encoding: str = "png",
        jpeg_quality: int = 95,
        max_rejected: Share = 0.1,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.height = height
        self.width = width
        self.channels = channels
        self.fit = fit
        self.mean = mean
        self.scale = scale
        self.classes = classes
        self.eval_percent = eval_percent
        self.encoding = encoding
        self.jpeg_quality = jpeg_quality
        self.max_rejected = max_rejected
        self.check_arguments(PrepareImagesOperator, sources=sources, label=label)
        self.sources: Any = sources if is_late(sources) else _described(sources)
        # Airflow's operators already have a ``label``, which the UI shows.
        self.label_column = label
        if not is_late(sources):
            self._options()

    def build_spec(self, hook: RuntimeHook, context: Context) -> StepSpec:
        """Returns the step's spec, of sources that are known now.

        Raises:
            BadInput: they are not a mapping, or not of images.
        """
        self.sources = _described(rendered_mapping("sources", self.sources))
        return super().build_spec(hook, context)

    def step_params(self, context: Context) -> dict[str, Any]:
        """Returns the sources and the options of their preparation."""
        return self._options().to_dict()

    def step_cache_key_parts(self, hook: RuntimeHook) -> dict[str, str]:
        """Adds the state of the files, so that changed files are read again."""
        sources = {
            split: ImageSource.from_value(split, value)
            for split, value in self.sources.items()
            if packed_role(split) not in self.step_inputs()
        }
        return {**super().step_cache_key_parts(hook), "sources": state_of_sources(sources)}

    def step_inputs(self) -> Mapping[str, Any]:
        """Returns the artifacts of packed files among the sources."""
        return {
            packed_role(split): source["uri"]
            for split, source in self.sources.items()
            if isinstance(source["uri"], Mapping)
        }

    def _options(self) -> ImageOptions:
        packed = self.step_inputs()
        sources = {
            split: {**source, "uri": packed[packed_role(split)]["uri"]} if packed_role(split) in packed else source
            for split, source in self.sources.items()
        }
        return ImageOptions.of(self, label=self.label_column, sources=sources)


def _described(sources: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of each source; that of packed files, an artifact, is its URI."""
    packed = {
        split
        for split, source in sources.items()
        if is_output(source) or (isinstance(source, Mapping) and "kind" in source)
    }
    return {
        split: ImageSource.from_value(split, {"uri": value} if split in packed else value).to_dict()
        for split, value in sources.items()
    }
