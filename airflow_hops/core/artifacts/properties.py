"""The ``properties`` of each kind of artifact: facts for downstream steps and web pages.

They are JSON in XCom and in the manifest. ``of`` reads artifacts of any version; missing properties have defaults.
A step commits ``to_dict``. Skew and evaluation have separate modules.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

from airflow_hops.core.artifacts.artifact import Artifact, Manifest
from airflow_hops.core.artifacts.target import Target
from airflow_hops.core.errors import BadInput
from airflow_hops.core.json_fields import JsonFields, omit_if_none

Mode = Literal["champion", "canary"]
"""Whether a model was deployed with all the traffic or a share of it."""

SAVED_MODEL = "saved_model"
"""Registered name of TensorFlow's format of models, and the folder in a model artifact that holds such a model."""
ENDPOINT = "endpoint"
"""Format of a model that only its endpoint has: its predictions are those that were captured."""
_FORMAT = re.compile(r"\w[\w-]*", re.ASCII)


Window = tuple[str | None, str | None]
"""Start and end (exclusive), ISO 8601 UTC; None means unbounded."""


@dataclass(frozen=True)
class Properties(JsonFields):
    """Properties of a kind of artifact."""

    @classmethod
    def of(cls, artifact: Artifact | Manifest) -> Self:
        """Reads the properties of an artifact of this kind. Raises BadInput if they are invalid."""
        try:
            return cls.from_dict(artifact.properties)
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            where = f"{artifact.uri}: " if isinstance(artifact, Artifact) else ""
            raise BadInput(
                f"{where}properties are {dict(artifact.properties)!r}; expected those of {artifact.kind} ({error})"
            ) from error

    @classmethod
    def from_dict(cls, value: Mapping[str, object]) -> Self:
        """Reads the JSON object; null and missing fields get the field's default."""
        return super().from_dict({name: item for name, item in value.items() if item is not None})


@dataclass(frozen=True)
class SnapshotProperties(Properties):
    """Properties of a ``snapshot``.

    Attributes:
        window: The ingested span; None if no table has a time.
        tables: Names of the tables.
        columns: Types of the columns in Arrow's words, by table and name; None in artifacts of older versions.
        plans: Rows that were read, by table, as returned by the planners of sources, such as the offsets of a topic or
            the version of a table; None if all sources are files.
        warnings: What a person should know of the values: numbers that stay text, blanks, times without a zone; None if
            there is nothing.
    """

    window: Window | None = None
    tables: tuple[str, ...] = ()
    columns: Mapping[str, Mapping[str, str]] | None = omit_if_none()
    plans: Mapping[str, Any] | None = omit_if_none()
    warnings: tuple[str, ...] | None = omit_if_none()


@dataclass(frozen=True)
class ExamplesProperties(Properties):
    """Properties of ``examples``, and of artifacts made from them.

    Each row of ``examples`` has the label (a class's number, int64; in a regression float64), and, if any, the key
    (string), the time (int64, seconds since the epoch, UTC) and the weight (float64, above 0). Raw features are columns
    of int64, float32, float64 and string, and lists of equally many floats. A missing value is null.

    Attributes:
        label: Name of the label's column.
        key: Name of the key's column; None if the data has none.
        time: Name of the time's column; None if the data has none.
        window: Window of the snapshot.
        splits: Names of the splits.
        problem: Kind of problem; None in artifacts of older versions.
        classes: Names of the classes in the order of their numbers, if any.
        weight: Name of the column of the rows' weights.
        more_labels: ``problem`` and, if any, ``classes`` of further labels, by column.
        columns: Types of the columns in Arrow's words, by name; None if they were not recorded.
        warnings: Those of the snapshot.
    """

    label: str | None = None
    key: str | None = None
    time: str | None = None
    window: Window | None = None
    splits: tuple[str, ...] = ()
    problem: str | None = omit_if_none()
    classes: tuple[str, ...] | None = omit_if_none()
    weight: str | None = omit_if_none()
    more_labels: Mapping[str, Mapping[str, Any]] | None = omit_if_none()
    columns: Mapping[str, str] | None = omit_if_none()
    warnings: tuple[str, ...] | None = omit_if_none()

    @property
    def target(self) -> Target:
        """Returns the target of a model of these examples.

        Raises:
            BadInput: there is no label, or the properties contradict each other.
        """
        return Target.from_properties(self.label_column, self.problem, self.classes, self.weight, self.more_labels)

    @property
    def label_column(self) -> str:
        """Returns the name of the label's column. Raises BadInput if there is none."""
        if self.label is None:
            raise BadInput("the examples' properties name no label; expected the name of its column")
        return self.label


@dataclass(frozen=True)
class StatisticsProperties(ExamplesProperties):
    """Properties of ``statistics`` of examples or of any files."""


@dataclass(frozen=True)
class TransformedExamplesProperties(ExamplesProperties):
    """Properties of ``transformed_examples``.

    Attributes:
        features: Raw features, in the schema's order.
        outputs: The preprocessing function's outputs by name: dtype, width, vocabulary size.
        by_class: For images: counts by split and class.
    """

    features: tuple[str, ...] = ()
    outputs: Mapping[str, Any] = field(default_factory=dict)
    by_class: Mapping[str, Any] | None = omit_if_none()


@dataclass(frozen=True)
class SchemaProperties(Properties):
    """Properties of a ``schema``, with columns as in :class:`ExamplesProperties`; None if it is not from statistics.

    Attributes:
        features: Names of the features; None if they were not read.
    """

    label: str | None = None
    key: str | None = None
    time: str | None = None
    features: tuple[str, ...] | None = omit_if_none()
    weight: str | None = omit_if_none()
    more_labels: Mapping[str, Mapping[str, Any]] | None = omit_if_none()


@dataclass(frozen=True)
class AnomaliesProperties(Properties):
    """Properties of ``anomalies``.

    Attributes:
        errors: Up to twenty sentences.
        warnings: Up to twenty sentences.
        drift: Up to twenty sentences on drift since the champion's training, for information only.
        proposed_features: Features of the proposed schema; None if none is proposed.
        examples: The valid rows as an artifact's JSON value, if they were separated from the invalid ones.
    """

    splits: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    drift: tuple[str, ...] = ()
    proposed_features: tuple[str, ...] | None = None
    examples: Mapping[str, Any] | None = omit_if_none()


@dataclass(frozen=True)
class WrittenTableProperties(Properties):
    """Properties of an artifact that records rows which its step wrote to a table outside of the store.

    Attributes:
        table: URI of the table.
        columns: Types of the table's columns in its own words, by name.
        version: Version of the table with the rows; None if it has none.
    """

    table: str = ""
    columns: Mapping[str, str] = field(default_factory=dict)
    version: str | None = None


@dataclass(frozen=True)
class ModelProperties(Properties):
    """Properties of a ``model``; a training without examples lacks those that come from examples.

    Attributes:
        signature: Name of the serving signature.
        train: The user's function, ``module:function``.
        ranks: Number of ranks.
        synchronized: Whether the ranks ended with the same weights.
        features: Raw features that the model uses.
        inputs: Inputs of requests.
        label: Name of the label's column; ``key`` and ``time`` are also columns.
        window: Window of the examples.
        statistics: URI of the statistics of its training data.
        schema: URI of the schema.
        problem: Kind of problem; None for a model without examples, or of an older version.
        classes: Names of the classes in the order of the outputs, if any.
        more_labels: Further predicted labels, as in :class:`ExamplesProperties`.
        format: Registered name of the model's format; None for a SavedModel.
        framework: Framework that it was trained with (``keras``, ``sklearn``, ``lightgbm``, ``xgboost``, ``torch``).
        library_versions: Versions of the framework and the converter, by distribution.
        continued_from: ``model_name``, ``version`` and ``fingerprint`` of the champion that its training began with.
    """

    signature: str | None = None
    train: str | None = None
    ranks: int | None = None
    synchronized: bool | None = None
    features: tuple[str, ...] | None = omit_if_none()
    inputs: tuple[str, ...] | None = omit_if_none()
    label: str | None = None
    key: str | None = None
    time: str | None = None
    window: Window | None = None
    statistics: str | None = None
    statistics_fingerprint: str | None = None
    schema: str | None = None
    problem: str | None = omit_if_none()
    classes: tuple[str, ...] | None = omit_if_none()
    more_labels: Mapping[str, Mapping[str, Any]] | None = omit_if_none()
    format: str | None = omit_if_none()
    framework: str | None = omit_if_none()
    library_versions: Mapping[str, str] | None = omit_if_none()
    continued_from: Mapping[str, Any] | None = omit_if_none()

    @classmethod
    def made_of(
        cls, data: ExamplesProperties, target: Target, roles: Mapping[str, Sequence[Artifact]], **own: Any
    ) -> Self:
        """Returns the properties of a model that was made of examples and artifacts by role; ``own`` are the others."""
        statistics, schema = (next(iter(roles.get(role, ())), None) for role in ("statistics", "schema"))
        own |= {name: getattr(data, name) for name in ("label", "key", "time", "window")}
        own |= {name: getattr(target, name) for name in ("problem", "classes", "more_labels")}
        if statistics is not None:
            own |= {"statistics": statistics.uri, "statistics_fingerprint": statistics.fingerprint}
        return cls(**own, schema=None if schema is None else schema.uri)

    @property
    def folder(self) -> str:
        """Returns the name of the folder that contains the model in the artifact, which is its format.

        Raises:
            BadInput: it is not the name of a format.
        """
        name = self.format or SAVED_MODEL
        if not _FORMAT.fullmatch(name):
            raise BadInput(f"the model's format is {name!r}, expected the registered name of a format")
        return name

    @property
    def target(self) -> Target:
        """Returns the target that the model predicts.

        Raises:
            BadInput: there is no label, or the properties contradict each other.
        """
        if self.label is None:
            raise BadInput("the model's properties name no label; expected the name of its column")
        return Target.from_properties(self.label, self.problem, self.classes, None, self.more_labels)

    def of_label(self, label: str) -> ModelProperties:
        """Returns the properties of a model with only this further label; unchanged if it is not a further label."""
        facts = (self.more_labels or {}).get(label)
        if facts is None:
            return self
        classes = facts.get("classes")
        names = None if classes is None else tuple(classes)
        return replace(self, label=label, more_labels=None, problem=facts.get("problem"), classes=names)


@dataclass(frozen=True)
class BlessingProperties(Properties):
    """Properties of ``infra_blessing``, and of other artifacts that decide whether a model may be deployed."""

    blessed: bool = False
    reasons: tuple[str, ...] | None = omit_if_none()

    @classmethod
    def from_dict(cls, value: Mapping[str, object]) -> Self:
        """Reads the JSON object.

        Raises:
            TypeError: as :meth:`JsonFields.from_dict`; or ``blessed`` is not a boolean, so that any non-empty value
                would bless.
        """
        made = super().from_dict(value)
        if not isinstance(made.blessed, bool):
            raise TypeError(f"blessed is {json.dumps(made.blessed)[:80]}, expected true or false")
        return made


@dataclass(frozen=True)
class DeploymentProperties(Properties):
    """Properties of a ``deployment``.

    Attributes:
        mode: ``champion`` if it has all the traffic, otherwise ``canary``.
        champion: The champion's version.
        traffic: Version to percent.
    """

    model_name: str | None = None
    version: int | None = None
    mode: Mode = "canary"
    champion: int | None = None
    traffic: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class RolloutProperties(Properties):
    """Properties of a ``rollout``.

    Attributes:
        version: The canary's version.
        decision: ``promoted``, ``rolled_back`` or ``left``; ``champion`` if no decision was needed.
        reasons: Reasons in words.
        champion: The champion's version after the decision.
        traffic: Version to percent after the decision.
    """

    model_name: str | None = None
    version: int | None = None
    decision: str = ""
    reasons: tuple[str, ...] = ()
    champion: int | None = None
    traffic: Mapping[str, int] = field(default_factory=dict)
