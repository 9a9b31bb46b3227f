"""Compares an exported model with the trained one: on held-out rows, and on probe rows."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from airflow_hops.ml.models.probe_rows import INFINITE, MISSING, Answer, Array, probe_batches
from airflow_hops.ml.models.samples import Sample
from airflow_hops.serving.models.model_signature import Refused

Answers = Callable[[Sample], Mapping[str, Array]]
_NAMED_ROWS = 5
_ROWS, _ROWS_ALONE = 8, 3
_TOLERABLE = 10
"""Up to this multiple of the tolerance, the message suggests raising it; beyond, the export is wrong."""


class Differs(Exception):
    """The exported model answers differently from the trained one; the message names rows.

    Args:
        message: The rows, with both answers.
        advice: How to train a model that does not differ.
        rows: Rows that differ, to determine the step that causes it; None if that is known.
    """

    def __init__(self, message: str, advice: str, rows: Sample | None = None) -> None:
        super().__init__(message)
        self.advice, self.rows = advice, rows


def compare_rows(
    exported: Mapping[str, Array],
    trained: Mapping[str, Array],
    what: str,
    tolerance: float,
    probabilities: set[str],
    labels: Sequence[object],
    cause: Callable[[str, Array, float, float | None, float], tuple[str, Sample | None]],
) -> float:
    """Returns the largest difference between the outputs of two models for the same rows.

    Args:
        exported: Outputs of the exported model, by name.
        trained: Outputs of the trained model.
        what: The exported model, for messages.
        tolerance: Largest difference allowed.
        probabilities: As for :meth:`TrainedAnswers.compare`.
        labels: Names of the rows for messages.
        cause: Returns advice and rows of :class:`Differs`, for an output, its differing rows, the largest difference,
            the output's spread and the tolerance.

    Raises:
        Differs: A row differs by more than the tolerance.
    """
    largest, spread = 0.0, _spread(trained, probabilities)
    for name, expected in trained.items():
        differences = _by_row(exported[name], expected, spread[name], floor=False)
        rows = _worst(differences, tolerance)
        if len(rows):
            shown = "; ".join(
                f"row {labels[row]}: {_shown(exported[name][row])} and not {_shown(expected[row])}"
                for row in rows[:_NAMED_ROWS]
            )
            output = f", output {name!r}," if len(trained) > 1 else ""
            raise Differs(
                f"{what}{output} differs from the trained one by more than {tolerance:g} in {len(rows)} of "
                f"{len(labels)} rows of the sample: {shown}",
                *cause(name, rows, float(differences.max()), spread[name], tolerance),
            )
        largest = max(largest, float(differences.max()))
    return largest


def check_rows_apart(
    ask: Callable[[Array], Mapping[str, Array]],
    whole: Mapping[str, Array],
    what: str,
    tolerance: float,
    probabilities: set[str],
    labels: Sequence[object],
) -> None:
    """Checks that an answer depends on its row only: requests may hold one row, and servers batch any requests.

    Args:
        ask: Returns the outputs by name for the rows with the given numbers, in one batch.
        whole: The outputs for all rows in one batch.
        what: The model, for messages.
        tolerance: Largest difference allowed.
        probabilities: As for :meth:`TrainedAnswers.compare`.
        labels: Names of the rows for messages.

    Raises:
        Differs: The model answers rows differently alone, among others, or when asked again.
    """
    count = len(next(iter(whole.values())))
    some = np.unique(np.linspace(0, count - 1, min(count, _ROWS)).astype(int))[::-1]
    spread = _spread(whole, probabilities)

    def check(rows: Array, where: str, expected: Mapping[str, Array], there: str, advice: str) -> Mapping[str, Array]:
        try:
            result = {name: values for name, values in ask(rows).items() if name in whole}
        except Exception as error:  # a model may refuse in any way
            raise Differs(f"{what} rejects row {labels[rows[0]]} {where}: {error}", advice) from error
        for name, values in expected.items():
            beyond = _worst(_by_row(result[name], values, spread[name], floor=False), tolerance)
            if len(beyond):
                worst = beyond[0]
                row = labels[rows[worst]]
                answer, other = _shown(result[name][worst]), _shown(values[worst])
                raise Differs(f"{what} answers row {row} with {answer} {where}, and with {other} {there}", advice)
        return result

    among = f"in a batch of {len(some)}"
    first = check(some, among, {}, "", _ALONE)  # without answers to compare: detects refusals only
    check(some, "when it is asked again", first, "before", _REPEATABLE)
    alone = [(some[start : start + 1], "alone") for start in range(0, len(some), max(1, len(some) // _ROWS_ALONE))]
    for rows, where in (*alone, (some, among)):
        check(rows, where, {name: values[rows] for name, values in whole.items()}, f"in one of {count}", _ALONE)


_ALONE = (
    "A server is asked for single rows, and batches them with any others: a model must not compute statistics or "
    "differences over the rows of a batch. Compute them in training or in the transform, and let BatchNorm use its "
    "moving averages (eval(), training=False)"
)
_REPEATABLE = (
    "A served model must not be random: turn Dropout and noise off (eval(), training=False), or make a Monte Carlo "
    "estimate repeatable, with masks or a seed that are stored in the model"
)


@dataclass(frozen=True)
class TrainedAnswers:
    """Answers of the trained model.

    Attributes:
        expected: Outputs for them, by name.
        rounded: Outputs for the same rows with numbers rounded to float32; None if the model refuses those.
        probes: Answers to the changes of each batch of probe rows.
        refused: Columns that must not be NaN, or infinite.
    """

    sample: Sample
    expected: Mapping[str, Array]
    rounded: Mapping[str, Array] | None
    probes: Sequence[Sequence[Answer]]
    refused: Refused

    @classmethod
    def of(cls, sample: Sample, expected: Mapping[str, Array], answers: Answers) -> TrainedAnswers:
        """Asks the trained model for the probe rows of a sample."""
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            probes: list[Sequence[Answer]] = []
            refused: dict[str, list[int]] = {MISSING: [], INFINITE: []}
            for batch in probe_batches(sample):
                probes.append(batch.ask(answers))
                for column, answer in zip(batch.columns, probes[-1], strict=True):
                    if isinstance(answer, str) and column is not None and batch.kind in refused:
                        refused[batch.kind].append(column)
            try:
                rounded = answers(sample.rounded())
            except Exception:  # a model may refuse in any way
                rounded = None
        kinds = [column.dtype.kind for column in sample.columns()]
        numbers = (tuple(column for column in columns if kinds[column] == "f") for columns in refused.values())
        return cls(sample, expected, rounded, probes, Refused(*numbers))

    def compare(self, exported: Answers, what: str, tolerance: float, probabilities: set[str]) -> float:
        """Returns the largest difference on the unchanged rows of the sample.

        Args:
            exported: Calls the exported model; raises if it refuses the rows.
            what: Its format, for messages.
            tolerance: Largest difference allowed.
            probabilities: Outputs whose difference is absolute; for others it is relative to the standard deviation of
                the trained model's outputs; for probe rows, to the output itself if that is larger.

        Raises:
            Differs: A row differs by more than the tolerance.
        """
        try:
            result = exported(self.sample)
        except Exception as error:
            message = f"the exported model ({what}) rejects the rows of the sample: {error}"
            raise Differs(message, "use another step or estimator", self.sample) from error
        subject, labels = f"the exported model ({what})", self.sample.labels
        largest = compare_rows(result, self.expected, subject, tolerance, probabilities, labels, self._cause)
        whole = {name: result[name] for name in self.expected}  # no names of classes
        check_rows_apart(
            lambda rows: exported(self.sample.take(rows)), whole, subject, tolerance, probabilities, labels
        )
        self._compare_probes(exported, what, tolerance, _spread(self.expected, probabilities))
        return largest

    def _cause(
        self, output: str, rows: Array, largest: float, spread: float | None, tolerance: float
    ) -> tuple[str, Sample | None]:
        """Returns the advice, and the rows to search for the cause; None if float32 features explain the difference."""
        tolerate = "; or set tolerance" if largest <= _TOLERABLE * tolerance else ""
        if self.rounded is not None:
            moved = _by_row(self.rounded[output], self.expected[output], spread, floor=False)[rows]
            if (moved > tolerance).mean() >= 0.5:
                return (
                    "features are float32 when it serves: train on float32 values, so that no threshold lies between a "
                    "value and its float32"
                ) + tolerate, None
        return (
            "float32 features are not the cause, as the trained model answers the same for the rounded rows; use "
            "another step or estimator"
        ) + tolerate, self.sample

    def _compare_probes(
        self, exported: Answers, what: str, tolerance: float, spread: Mapping[str, float | None]
    ) -> None:
        shown: list[str] = []
        differing, asked, rows_that_differ = 0, 0, None
        for batch, answers in zip(probe_batches(self.sample), self.probes, strict=True):
            known = len(shown)
            rows = len(batch.sample.labels) // len(batch.columns)
            for index, (expected, result) in enumerate(zip(answers, batch.ask(exported), strict=True)):
                asked += rows
                labels = batch.sample.labels[index * rows : (index + 1) * rows]
                if isinstance(expected, str) or isinstance(result, str):
                    if isinstance(expected, str) != isinstance(result, str):
                        differing += rows
                        shown.append(
                            f"{labels[0]}: {_said(result, self.expected)} and not {_said(expected, self.expected)}"
                        )
                    continue
                for name, values in expected.items():
                    by_row = _by_row(result[name], values, spread[name], floor=True)
                    beyond = _worst(by_row, tolerance)
                    differing += len(beyond)
                    if len(beyond):
                        row = beyond[0]
                        shown.append(f"{labels[row]}: {_shown(result[name][row])} and not {_shown(values[row])}")
            if len(shown) > known and rows_that_differ is None:
                rows_that_differ = batch.sample
        if shown:
            more = f"; and {len(shown) - 2 * _NAMED_ROWS} more" if len(shown) > 2 * _NAMED_ROWS else ""
            raise Differs(
                f"the exported model ({what}) agrees with the trained one on the rows of the sample, but differs in "
                f"{differing} of {asked} rows with a changed value, which requests may hold: "
                f"{'; '.join(shown[: 2 * _NAMED_ROWS])}{more}",
                "use another step or estimator, or have an earlier step replace such values",
                rows_that_differ,
            )


def _said(answer: Answer, outputs: Iterable[str]) -> str:
    if isinstance(answer, str):
        return f"an error ({(answer.strip().splitlines() or [''])[0][:200]})"
    return _shown(answer[next(iter(outputs))][0])


def _spread(outputs: Mapping[str, Array], probabilities: set[str]) -> dict[str, float | None]:
    """Returns the scale of differences, by output; None if they are absolute."""
    return {
        name: None if name in probabilities else float(values.std()) or float(np.abs(values).max()) or 1.0
        for name, values in outputs.items()
    }


def _by_row(exported: Array, expected: Array, spread: float | None, *, floor: bool) -> Array:
    """Returns the largest difference in each row, absolute without ``spread``, else relative to it.

    With ``floor``, it is relative to the expected number if that is larger.
    """
    with np.errstate(all="ignore"):
        served, trained = exported.astype(np.float64), expected.astype(np.float32).astype(np.float64)
        scale = 1.0 if spread is None else np.maximum(spread, np.abs(trained) if floor else 0)
        differences = np.where(served == trained, 0.0, np.abs(served - trained) / scale).reshape(len(served), -1)
    both = [np.isnan(values.reshape(len(served), -1)).any(axis=1) for values in (served, trained)]
    largest = np.nan_to_num(differences, nan=np.inf).max(axis=1, initial=0.0)
    return np.where(both[0] & both[1], 0.0, largest)


def _worst(by_row: Array, tolerance: float) -> Array:
    beyond = np.flatnonzero(~(by_row <= tolerance))
    return beyond[np.argsort(-by_row[beyond], kind="stable")]


def _shown(value: Any) -> str:
    return f"{value:.7g}" if np.ndim(value) == 0 else f"[{', '.join(f'{each:.4g}' for each in np.ravel(value)[:10])}]"
