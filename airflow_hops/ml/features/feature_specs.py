"""Reads and writes ``features.json``: the inputs and outputs of a transform graph."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tensorflow_metadata.proto.v0 import schema_pb2

from airflow_hops.core.artifacts.target import Target
from airflow_hops.core.errors import ArtifactNotFound, BadInput, UnreadableFile
from airflow_hops.core.json_fields import JsonFields, omit_if_none
from airflow_hops.core.json_files import read_json
from airflow_hops.ml.readers.vectors import split_dtype
from airflow_hops.ml.schema_files import load_schema

_DTYPE_OF_TYPE = {1: "string", 2: "int64", 3: "float32"}
"""Dtype by ``tensorflow_metadata.proto.v0.schema_pb2.FeatureType`` (BYTES, INT, FLOAT)."""


@dataclass(frozen=True)
class Encoding(JsonFields):
    """How the stored values of a column become tensors.

    Attributes:
        decoder: Registered name of the :class:`~airflow_hops.ml.features.column_decoders.ColumnDecoder`.
        shape: Shape of one row's tensor.
        options: Arguments of the decoder.
    """

    decoder: str
    shape: tuple[int, ...]
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class OutputSpec(JsonFields):
    """Output of the preprocessing function.

    Attributes:
        dtype: TensorFlow's name of its dtype.
        width: Columns of an output of shape ``[batch, width]``; None for the shape ``[batch]``.
        vocabulary_size: Number of ids of a vocabulary, the number of rows that an embedding needs.
        inputs: Raw features, and the time, that it is computed from; None if unknown.
        encoding: For a column of encoded bytes, such as images, which trainings decode: how they do it.
    """

    dtype: str
    width: int | None = None
    vocabulary_size: int | None = omit_if_none()
    encoding: Encoding | None = omit_if_none()  # noqa: RUF009  # makes a field
    inputs: tuple[str, ...] | None = omit_if_none()

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one row's value, for ``keras.Input``."""
        if self.encoding is not None:
            return self.encoding.shape
        return () if self.width is None else (self.width,)


@dataclass(frozen=True)
class FeatureSpecs:
    """Columns of a transform.

    Attributes:
        features: Raw features in the schema's order, with their dtypes: int64, float32 or string; ``float32[16]`` for
            vectors of 16 numbers.
        label: Name of the label column.
        key: Name of the key column, or None.
        time: Name of the time column (int64, seconds since the epoch), or None.
        outputs: The preprocessing function's outputs by name.
        extra_inputs: Raw features, and the time, that a served model accepts even if it does not use them.
        classes: Names of the classes in the order of their numbers; None in a regression, and for a label of 0 or 1.
        problem: The kind of problem; None in a file of an older version.
        weight: Name of the column of the rows' weights, or None.
        more_labels: Problem and classes of further labels by name; None if there are none.
    """

    features: Mapping[str, str]
    label: str
    key: str | None
    time: str | None
    outputs: Mapping[str, OutputSpec]
    classes: tuple[str, ...] | None = None
    extra_inputs: tuple[str, ...] = ()
    problem: str | None = None
    weight: str | None = None
    more_labels: Mapping[str, Mapping[str, Any]] | None = None

    @property
    def target(self) -> Target:
        """Returns the target of a model; raises ``BadInput`` if problem and classes contradict each other."""
        return Target.from_properties(self.label, self.problem, self.classes, self.weight, self.more_labels)

    @property
    def inputs(self) -> dict[str, str]:
        """Dtypes of the graph's inputs, by name: the raw features and, last, the time column."""
        return {**self.features, **({self.time: "int64"} if self.time else {})}

    def inputs_of(self, outputs: Iterable[str]) -> dict[str, str]:
        """Returns the dtypes of the inputs of a model of these outputs, by name, in the order of :attr:`inputs`."""
        needed = set(self.extra_inputs)
        for name in outputs:
            read = self.outputs[name].inputs
            needed.update(self.inputs if read is None else read)
        return {name: dtype for name, dtype in self.inputs.items() if name in needed}

    def to_json(self) -> str:
        """Returns the text of ``features.json``."""
        value: dict[str, Any] = {
            "features": {
                name: {"dtype": values} if width is None else {"dtype": values, "width": width}
                for name, (values, width) in zip(self.features, map(split_dtype, self.features.values()), strict=True)
            },
            "label": self.label,
            "key": self.key,
            "time": self.time,
            "outputs": {name: output.to_dict() for name, output in self.outputs.items()},
        }
        if self.classes is not None:
            value["classes"] = list(self.classes)
        optional = ("problem", "weight", "more_labels")
        value |= {name: report for name in optional if (report := getattr(self, name)) is not None}
        if self.extra_inputs:
            value["extra_inputs"] = list(self.extra_inputs)
        return json.dumps(value, indent=1)

    @classmethod
    def read(cls, path: Path) -> FeatureSpecs:
        """Reads ``features.json``; raises ``BadInput`` if it is missing or invalid."""
        try:
            value = read_json(path)
            return cls(
                features={
                    name: f"{spec['dtype']}[{spec['width']}]" if "width" in spec else str(spec["dtype"])
                    for name, spec in value["features"].items()
                },
                label=value["label"],
                key=value["key"],
                time=value["time"],
                outputs={name: OutputSpec.from_dict(spec) for name, spec in value["outputs"].items()},
                classes=tuple(value["classes"]) if "classes" in value else None,
                extra_inputs=tuple(value.get("extra_inputs", ())),
                problem=value.get("problem"),
                weight=value.get("weight"),
                more_labels=value.get("more_labels"),
            )
        except FileNotFoundError:
            raise ArtifactNotFound(
                path, ": the file does not exist; the transform writes it beside its transform graph"
            ) from None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UnreadableFile(
                path, f": not the features.json of a transform ({type(error).__name__}: {error})"
            ) from None


def read_raw_features(
    schema_path: Path,
    *,
    label: str,
    key: str | None,
    time: str | None,
    weight: str | None = None,
    more_labels: Collection[str] = (),
) -> dict[str, str]:
    """Reads a schema's features, in its order, except labels, key, time and weight.

    Returns:
        Dtype by name: INT is int64, FLOAT float32, BYTES string; FLOAT of n values in every row, by the feature's shape
        or its value count, is ``float32[n]``.

    Raises:
        BadInput: the schema is missing, or a feature has an unsupported type, or lists of different lengths.
    """
    schema = load_schema(schema_path)
    features: dict[str, str] = {}
    for feature in schema.feature:
        if feature.name in (label, *more_labels, key, time, weight) or feature.lifecycle_stage == schema_pb2.DEPRECATED:
            continue
        if feature.type not in _DTYPE_OF_TYPE:
            raise BadInput(
                f"{schema_path}: feature {feature.name!r} is {schema_pb2.FeatureType.Name(feature.type)}; expected "
                "BYTES, INT or FLOAT"
            )
        features[feature.name] = _DTYPE_OF_TYPE[feature.type] + _width(feature, schema_path)
    if not features:
        raise BadInput(f"{schema_path}: it has no feature besides label, key, time and weight")
    return features


def _width(feature: schema_pb2.Feature, schema_path: Path) -> str:
    """Returns the width part of a vector's dtype, such as ``[16]``; "" for a feature of one value per row."""
    low, high = feature.value_count.min, feature.value_count.max
    if feature.HasField("shape"):
        sizes = [dim.size for dim in feature.shape.dim]
    else:
        sizes = [] if low <= 1 and high <= 1 else [high if low == high else -1]
    if sizes in ([], [1]):
        return ""
    if len(sizes) > 1 or sizes[0] < 1 or feature.type != schema_pb2.FLOAT:
        result = f"shape {sizes}" if feature.HasField("shape") else f"{low} to {high or 'any number of'} values a row"
        raise BadInput(
            f"{schema_path}: feature {feature.name!r} is {schema_pb2.FeatureType.Name(feature.type)}, {result}; "
            "expected one value, or vectors of floats of one length; correct it in prepare()"
        )
    return f"[{sizes[0]}]"
