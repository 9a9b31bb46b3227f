"""Result of an explanation: the file ``explanation.json``, and the properties of the artifacts."""

from __future__ import annotations

from dataclasses import dataclass, field

from airflow_hops.core.artifacts.properties import Properties
from airflow_hops.core.errors import BadInput, InvalidArgument
from airflow_hops.core.evaluation import ModelReference
from airflow_hops.core.json_fields import JsonFields, StepOptions
from airflow_hops.core.metrics import Interval

EXPLANATION_FILE = "explanation.json"

MAX_IMPORTANCES = 1000
"""Features whose importance is written, the most important first."""
MAX_CLASSES = 10
"""Classes whose partial dependence is written, the most frequent first."""
MAX_REASONS = 20
"""Reasons of a row that are written one by one; the others are added up."""


@dataclass(frozen=True)
class FeatureImportance(JsonFields):
    """Importance of a feature: by how much the mean loss rises if its values are shuffled among the rows.

    Attributes:
        candidate: The rise, and its 95% interval; None if the model does not have the feature.
        champion: The same for the champion; None without one, or if it does not have the feature.
        is_beyond_chance: Whether the candidate's rise is above 0 beyond chance, all features considered (Bonferroni's
            correction at 5%).
    """

    feature: str
    candidate: Interval | None
    champion: Interval | None
    is_beyond_chance: bool


@dataclass(frozen=True)
class DependencePoint(JsonFields):
    """Mean prediction if all rows had a value.

    Attributes:
        value: A number or a text; None for a missing value.
        share: Share of the rows whose value is this one, or nearest to it.
        candidate: The mean prediction; with several classes, of each in ``Explanation.dependence_classes``.
        champion: The same for the champion; None without one, or if it does not have the feature.
    """

    value: float | str | None
    share: float
    candidate: tuple[float, ...]
    champion: tuple[float, ...] | None = None


@dataclass(frozen=True)
class Dependence(JsonFields):
    """Partial dependence of the predictions on a feature; ``is_number`` if its points are on a scale."""

    feature: str
    is_number: bool
    points: tuple[DependencePoint, ...]


@dataclass(frozen=True)
class Reason(JsonFields):
    """Contribution of a feature's value to a prediction.

    Attributes:
        value: The value as text; None if it is missing.
        contribution: Shapley value, in the prediction's unit.
        error: Half of the width of its 95% interval; 0 if it was computed and not sampled.
    """

    feature: str
    value: str | None
    contribution: float
    error: float


@dataclass(frozen=True)
class ExplainedRow(JsonFields):
    """Reasons of a prediction: ``base`` + all contributions + ``rest`` is ``prediction``.

    Attributes:
        key: The row's key, or its number among the sampled rows if the examples have none.
        class_name: With several classes, the likeliest, whose probability is explained.
        base: Mean prediction of the background.
        reasons: The strongest first.
        rest: Sum of the contributions of the other features.
    """

    key: str
    class_name: str | None
    prediction: float
    base: float
    reasons: tuple[Reason, ...]
    rest: float


@dataclass(frozen=True)
class ExplanationProperties(Properties):
    """Properties of an ``explanation``.

    Attributes:
        model_name: Name under which the model is to be served, if it was given.
        leading: The most important features whose importance is beyond chance, at most five.
    """

    candidate: ModelReference = field(default_factory=ModelReference)
    champion: ModelReference | None = None
    model_name: str | None = None
    warnings: tuple[str, ...] = ()
    leading: tuple[str, ...] = ()


@dataclass(frozen=True)
class Explanation(JsonFields):
    """The content of ``explanation.json``.

    Attributes:
        log_odds: Whether the reasons of ``explained`` add up to the log-odds of a class, not to its probability.
        loss: The loss in words.
        candidate_loss: The candidate's mean loss on the rows.
        champion_loss: The champion's on the rows whose class it knows; None without one.
        constant_loss: That of the best constant prediction.
        features: Number of features.
        predictions: Number of predictions that were made.
        dependence_classes: With several classes, those that the dependence is of.
    """

    candidate: ModelReference
    champion: ModelReference | None
    model_name: str | None
    problem: str
    label: str
    split: str
    rows: int
    repeats: int
    background_rows: int
    seed: int
    loss: str
    candidate_loss: float
    champion_loss: float | None
    constant_loss: float
    features: int
    predictions: int
    warnings: tuple[str, ...]
    dependence_classes: tuple[str, ...] | None
    importance: tuple[FeatureImportance, ...]
    dependence: tuple[Dependence, ...]
    explained: tuple[ExplainedRow, ...]
    log_odds: bool = False

    @property
    def properties(self) -> ExplanationProperties:
        """Returns the properties of the artifact."""
        leading = tuple(each.feature for each in self.importance if each.is_beyond_chance)[:5]
        return ExplanationProperties(self.candidate, self.champion, self.model_name, self.warnings, leading)


@dataclass(frozen=True)
class ReasonsProperties(Properties):
    """Properties of ``reasons``, whose files have a row for each row of the examples, in their order."""

    model: str = ""
    model_fingerprint: str = ""
    splits: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    reasons: int = 0
    background_rows: int = 0
    is_exact: bool = False
    log_odds: bool = False


@dataclass(frozen=True)
class ShapleyOptions(StepOptions):
    """Options of Shapley values, as the operators' arguments.

    Raises:
        BadInput: an option is not allowed.
    """

    background_rows: int = 100
    pairs: int = 4
    max_predictions: int = 50_000_000
    seed: int = 0
    log_odds: bool = False

    def __post_init__(self) -> None:
        if self.pairs < 2:
            raise InvalidArgument("pairs", self.pairs, ", expected a whole number, 2 or more")

    def check_cost(self, predictions: int, factors: str) -> None:
        """Raises BadInput if more predictions are needed than allowed; ``factors`` says what they are for."""
        if predictions > self.max_predictions:
            raise BadInput(
                f"{predictions:,} predictions are needed ({factors}), and max_predictions is {self.max_predictions:,}: "
                "lower the rows, repeats, background_rows or pairs, or raise max_predictions"
            )
