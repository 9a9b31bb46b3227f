"""Options of image preparation, for the operator, the step, the pool and readers of the artifact."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from airflow_hops.core.errors import BadInput, InvalidArgument
from airflow_hops.core.json_fields import JsonFields, StepOptions
from airflow_hops.core.names import check_known
from airflow_hops.core.prepare.options import EVAL, TRAIN
from airflow_hops.core.sources.sources import AnySource

KEY, IMAGE = "key", "image"
"""Columns of prepared images."""
REJECTED = "rejected"
"""Folder of rejected images."""
ENCODINGS = ("png", "jpeg")
CHANNELS = {1: "greyscale", 3: "RGB", 4: "RGB with opacity"}
MAX_PIXELS = 64 << 20
"""Maximum number of pixels of an image; decoding takes about 5 bytes a pixel, and small files can have many pixels."""
FITS = ("cover", "stretch", "crop")


@dataclass(frozen=True)
class ImageSource(AnySource):
    """A source of labelled images.

    Attributes:
        uri: Absolute local path or fsspec URI: a folder with a folder of image files for each class; such files
            packed by ``PackOperator``; Parquet files (one, a glob, or a folder of them) with a column of encoded
            images; or an IDX file of images, like MNIST's.
        labels: For IDX: the IDX file of the labels.
        image_column: For Parquet: the encoded images, binary, or a struct with a field ``bytes``.
        label_column: For Parquet: names or numbers of the classes.
        key_column: For Parquet: keys of the images; None derives them from the file's name and the row's number.
        storage_options: fsspec options. Airflow stores them with the task's rendered fields, so put credentials into
            a connection.
        storage_conn_id: Connection with further options, such as ``aws_default``; see the field of that name of the
            connection of type ``hops``.
    """

    labels: str | None = None
    image_column: str = "image"
    label_column: str = "label"
    key_column: str | None = None

    @property
    def uris(self) -> tuple[str, ...]:
        """URIs of the images and of their labels."""
        return (self.uri,) if self.labels is None else (self.uri, self.labels)


@dataclass(frozen=True)
class ImageSpec(JsonFields):
    """The conversion of an encoded image to a float32 tensor of shape ``[height, width, channels]``.

    Attributes:
        channels: 1 (greyscale), 3 (RGB) or 4 (RGB with opacity); other images are converted.
        mean: By channel, subtracted from the pixels, which are in [0, 1].
        scale: Divisor by channel, usually the standard deviation.
        fit: ``cover`` resizes with the aspect ratio so that both sides are covered, and crops both ends equally;
            ``stretch`` resizes each side independently; ``crop`` takes the middle, without resizing.

    Raises:
        BadInput: a value is not allowed.
    """

    height: int
    width: int
    channels: int
    mean: tuple[float, ...] = ()
    scale: tuple[float, ...] = ()
    fit: str = "cover"

    def __post_init__(self) -> None:
        for name in ("height", "width"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InvalidArgument(name, value, ", expected a whole number of pixels, 1 or more")
        if isinstance(self.channels, bool) or self.channels not in CHANNELS:
            kinds = ", ".join(f"{number} ({kind})" for number, kind in CHANNELS.items())
            raise InvalidArgument("channels", self.channels, f", expected one of {kinds}")
        check_known("fit", self.fit, FITS)
        for name, default in (("mean", 0.0), ("scale", 1.0)):
            values = tuple(float(value) for value in getattr(self, name)) or (default,) * self.channels
            if len(values) != self.channels or not all(map(math.isfinite, values)):
                raise BadInput(
                    f"{name} is {getattr(self, name)!r}, expected {self.channels} finite numbers, by channel"
                )
            if name == "scale" and min(values) <= 0:
                raise InvalidArgument("scale", self.scale, ", expected numbers above 0")
            object.__setattr__(self, name, values)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Returns height, width and channels."""
        return self.height, self.width, self.channels


def packed_role(split: str) -> str:
    """Returns the role of the artifact ``packed_files`` that is a split's source."""
    return f"packed_{split}"


@dataclass(frozen=True)
class ImageOptions(StepOptions):
    """Options of the images stage, as the arguments of ``PrepareImagesOperator``.

    Raises:
        BadInput: an option is not allowed.
    """

    sources: Mapping[str, ImageSource]
    height: int
    width: int
    channels: int
    fit: str = "cover"
    mean: Sequence[float] | None = None
    scale: Sequence[float] | None = None
    classes: Sequence[str] | None = None
    label: str = "label"
    eval_percent: int = 10
    encoding: str = "png"
    jpeg_quality: int = 95
    max_rejected: float = 0.1

    def __post_init__(self) -> None:
        sources = {split: ImageSource.from_value(split, value) for split, value in self.sources.items()}
        object.__setattr__(self, "sources", sources)
        _ = self.spec
        if TRAIN not in sources:
            raise BadInput(f"sources has no {TRAIN!r}; it has {', '.join(sources) or 'nothing'}")
        if REJECTED in sources:
            raise BadInput(f"sources[{REJECTED!r}]: that folder is for rejected images; choose another split name")
        if not isinstance(self.eval_percent, int) or not 0 <= self.eval_percent < 100:
            raise InvalidArgument("eval_percent", self.eval_percent, ", expected a whole number from 0 to 99")
        if EVAL in sources and self.eval_percent:
            raise BadInput(f"sources has a split {EVAL!r}, and eval_percent is {self.eval_percent}; expected 0 then")
        if self.label in (KEY, IMAGE):
            raise InvalidArgument("label", self.label, ", which is the name of another column; choose another")
        check_known("encoding", self.encoding, ENCODINGS)
        if self.encoding == "jpeg" and self.channels == 4:
            raise BadInput("encoding is 'jpeg', which has no alpha channel, but channels is 4; expected 'png'")
        if not 1 <= self.jpeg_quality <= 100:
            raise InvalidArgument("jpeg_quality", self.jpeg_quality, ", expected 1 to 100")

    @property
    def spec(self) -> ImageSpec:
        """Returns the conversion of an image, as far as it is known before the training images are read."""
        mean, scale = tuple(self.mean or ()), tuple(self.scale or ())
        return ImageSpec(self.height, self.width, self.channels, mean, scale, self.fit)
