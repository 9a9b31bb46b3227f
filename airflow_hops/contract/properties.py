"""What stands in the ``properties`` of each kind of artifact: the facts that downstream, and the pages, read.

They are JSON in XCom and in the manifest. ``of`` reads those of an artifact, whichever version wrote them: what it does
not tell has its default. ``to_dict`` is what a step commits. Skew and evaluation have modules of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self, get_args

from airflow_hops.contract.artifacts import Artifact, BadInput, Manifest
from airflow_hops.contract.json_fields import JsonFields, where_told
from airflow_hops.contract.target import Target

Mode = Literal["champion", "canary"]
"""How a model was deployed: with all the traffic, or with a share of it."""

ModelFormat = Literal["saved_model", "onnx", "skops"]
"""What a model artifact holds, in a folder of this name: TensorFlow's SavedModel, an ONNX graph, or an estimator."""

SAVED_MODEL, ONNX, SKOPS = get_args(ModelFormat)

Window = tuple[str | None, str | None]
"""Start and end, ISO 8601 UTC, None where it is open; the end is not within it."""


@dataclass(frozen=True)
class Properties(JsonFields):
    """The properties of a kind of artifact."""

    @classmethod
    def of(cls, artifact: Artifact | Manifest) -> Self:
        """Those of an artifact of this kind.

        Raises:
            BadInput: they are none.
        """
        try:
            return cls.from_dict(artifact.properties)
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            where = f"{artifact.uri}: " if isinstance(artifact, Artifact) else ""
            raise BadInput(
                f"{where}properties are {dict(artifact.properties)!r}; expected those of {artifact.kind} ({error})"
            ) from error

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Self:
        """The inverse of :meth:`to_dict`; null, and what is not there, are the field's default."""
        return super().from_dict(
            {name: tuple(v) if isinstance(v, list) else v for name, v in value.items() if v is not None}
        )


@dataclass(frozen=True)
class SnapshotProperties(Properties):
    """Of ``snapshot``.

    Attributes:
        window: The span that was ingested; None where no table has a time.
        tables: Their names.
    """

    window: Window | None = None
    tables: tuple[str, ...] = ()


@dataclass(frozen=True)
class ExamplesProperties(Properties):
    """Of ``examples``, and of what is made of them.

    Attributes:
        label: Name of the label's column.
        key: Name of the key's column; None where the data has none.
        time: Name of the time's column; None where the data has none.
        window: The span of the snapshot.
        splits: Their names.
        problem: What the label asks for; None in what was written before there were several kinds.
        classes: Names of the classes in the order of their numbers, where they have any.
        weight: Name of the column of the rows' weights.
        more_labels: Of further labels, by the names of their columns: ``problem`` and, if any, ``classes``.
    """

    label: str | None = None
    key: str | None = None
    time: str | None = None
    window: Window | None = None
    splits: tuple[str, ...] = ()
    problem: str | None = where_told()
    classes: tuple[str, ...] | None = where_told()
    weight: str | None = where_told()
    more_labels: Mapping[str, Mapping[str, Any]] | None = where_told()

    @property
    def target(self) -> Target:
        """What a model of these examples is to predict.

        Raises:
            BadInput: there is no label, or the properties contradict each other.
        """
        return Target.told(self.label_column, self.problem, self.classes, self.weight, self.more_labels)

    @property
    def label_column(self) -> str:
        """Name of the label's column.

        Raises:
            BadInput: there is none.
        """
        if self.label is None:
            raise BadInput("the examples' properties name no label; expected the name of its column")
        return self.label


@dataclass(frozen=True)
class StatisticsProperties(ExamplesProperties):
    """Of ``statistics``, of examples or of any files.

    Attributes:
        skipped_files: By split, files that were left out as unreadable, and why; None where none may be.
    """

    skipped_files: Mapping[str, Mapping[str, str]] | None = where_told()


@dataclass(frozen=True)
class TransformedExamplesProperties(ExamplesProperties):
    """Of ``transformed_examples``.

    Attributes:
        features: Raw features, in the schema's order.
        outputs: What the preprocessing function returns, by name: dtype, width, vocabulary size.
        by_class: Of images: counts by split and class.
    """

    features: tuple[str, ...] = ()
    outputs: Mapping[str, Any] = field(default_factory=dict)
    by_class: Mapping[str, Any] | None = where_told()


@dataclass(frozen=True)
class SchemaProperties(Properties):
    """Of ``schema``: columns as in :class:`ExamplesProperties`, None where the schema is not of statistics.

    Attributes:
        label: Name of the label's column.
        key: Name of the key's column.
        time: Name of the time's column.
        features: Names of the features; None where they were not read.
        weight: Name of the column of the rows' weights.
        more_labels: As in :class:`ExamplesProperties`.
    """

    label: str | None = None
    key: str | None = None
    time: str | None = None
    features: tuple[str, ...] | None = where_told()
    weight: str | None = where_told()
    more_labels: Mapping[str, Mapping[str, Any]] | None = where_told()


@dataclass(frozen=True)
class AnomaliesProperties(Properties):
    """Of ``anomalies``.

    Attributes:
        splits: Splits that were validated.
        errors: At most twenty sentences.
        warnings: At most twenty sentences.
        proposed_features: Of the proposed schema; None where none is proposed.
        examples: The good rows as an artifact's JSON value, where they were told from the bad ones.
    """

    splits: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    proposed_features: tuple[str, ...] | None = None
    examples: Mapping[str, Any] | None = where_told()


@dataclass(frozen=True)
class PredictionsProperties(Properties):
    """Of ``predictions``.

    Attributes:
        model: URI of the model artifact.
        model_fingerprint: Its fingerprint.
        model_name: Where it was deployed, its name.
        version: Where it was deployed, its version.
        signature: The signature that was called.
        splits: Splits of the examples.
        columns: Columns of the examples that were kept.
        outputs: Names of the outputs and their types.
        key: Name of the key's column, or None.
        window: Of the examples.
        problem: What the model predicts; None where it does not tell.
        classes: Names of the classes in the order of ``probabilities``, where they have any.
        more_labels: Of the model.
    """

    model: str = ""
    model_fingerprint: str = ""
    model_name: str | None = None
    version: int | None = None
    signature: str = ""
    splits: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    outputs: Mapping[str, str] = field(default_factory=dict)
    key: str | None = None
    window: Window | None = None
    problem: str | None = where_told()
    classes: tuple[str, ...] | None = where_told()
    more_labels: Mapping[str, Mapping[str, Any]] | None = where_told()


@dataclass(frozen=True)
class ModelProperties(Properties):
    """Of ``model``; those of a training without examples have none of what comes from them.

    Attributes:
        signature: Name of the serving signature.
        train: The user's function, ``module:function``.
        ranks: How many there were.
        synchronized: Whether the ranks ended with the same weights.
        features: Raw features that the model uses.
        inputs: What requests hold.
        label: Name of the label's column.
        key: Name of the key's column.
        time: Name of the time's column.
        window: Of the examples.
        statistics: URI of the statistics that the constants come from.
        statistics_fingerprint: Their fingerprint.
        schema: URI of the schema.
        problem: What it predicts; None of a model without examples, or from before there were several kinds.
        classes: Names of the classes in the order of its outputs, where they have any.
        more_labels: As in :class:`ExamplesProperties`: the further labels that it predicts.
        format: How the model is stored; None for a SavedModel.
        framework: What it was trained with (``keras``, ``sklearn``, ``lightgbm``, ``xgboost``, ``torch``).
        library_versions: Of the framework and the converter, by distribution.
    """

    signature: str | None = None
    train: str | None = None
    ranks: int | None = None
    synchronized: bool | None = None
    features: tuple[str, ...] | None = where_told()
    inputs: tuple[str, ...] | None = where_told()
    label: str | None = None
    key: str | None = None
    time: str | None = None
    window: Window | None = None
    statistics: str | None = None
    statistics_fingerprint: str | None = None
    schema: str | None = None
    problem: str | None = where_told()
    classes: tuple[str, ...] | None = where_told()
    more_labels: Mapping[str, Mapping[str, Any]] | None = where_told()
    format: str | None = where_told()
    framework: str | None = where_told()
    library_versions: Mapping[str, str] | None = where_told()

    @property
    def folder(self) -> ModelFormat:
        """Name of the folder that holds the model in the artifact: that of its format.

        Raises:
            BadInput: this version knows no such format.
        """
        for known in get_args(ModelFormat):
            if known == (self.format or "saved_model"):
                return known  # type: ignore[no-any-return]
        raise BadInput(
            f"the model's format is {self.format!r}; this version supports {', '.join(get_args(ModelFormat))}"
        )

    @property
    def target(self) -> Target:
        """What the model predicts.

        Raises:
            BadInput: there is no label, or the properties contradict each other.
        """
        if self.label is None:
            raise BadInput("the model's properties name no label; expected the name of its column")
        return Target.told(self.label, self.problem, self.classes, None, self.more_labels)


@dataclass(frozen=True)
class BlessingProperties(Properties):
    """Of ``infra_blessing``, and of any other that says whether a model may be deployed.

    Attributes:
        blessed: Whether it may.
        reasons: Why, or why not.
    """

    blessed: bool = False
    reasons: tuple[str, ...] | None = where_told()


@dataclass(frozen=True)
class DeploymentProperties(Properties):
    """Of ``deployment``.

    Attributes:
        model_name: The model.
        version: The deployed version.
        mode: ``champion`` where it has all the traffic, else ``canary``.
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
    """Of ``rollout``.

    Attributes:
        model_name: The model.
        version: The version that was decided on.
        decision: ``promoted``, ``rolled_back`` or ``left``; ``champion`` where there was nothing to decide.
        reasons: In words.
        champion: The champion's version now.
        traffic: Version to percent now.
    """

    model_name: str | None = None
    version: int | None = None
    decision: str = ""
    reasons: tuple[str, ...] = ()
    champion: int | None = None
    traffic: Mapping[str, int] = field(default_factory=dict)
