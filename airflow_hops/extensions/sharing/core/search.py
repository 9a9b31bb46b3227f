"""Search in entries of data sets: words, and conditions on rows, features and their statistics."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable

from airflow_hops.core.errors import BadInput
from airflow_hops.extensions.sharing.core.entries import Dataset

_CONDITION = re.compile(r"([^<>=\s]+?)(<=|>=|<|>|=)(\S+)")
_OPERATORS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "=": operator.eq}
_FIGURES = ("rows", "size_bytes", "files", "version")


def search(datasets: Iterable[Dataset], text: str) -> list[Dataset]:
    """Returns the data sets that match all terms of a text.

    A word matches if it is in the organisation, name, licence, description, or the name, type or most frequent values
    of a feature, in any case. A condition is ``rows>1000``, also of ``size_bytes``, ``files``, ``version`` and
    ``features``, or of a statistic of a feature: ``delay.mean>5``, ``dest.unique>=10``, ``delay.missing<0.1``.

    Raises:
        BadInput: the value of a condition is not a number.
    """
    results, terms = list(datasets), text.split()
    for term in terms:
        condition = _CONDITION.fullmatch(term)
        if condition is None:
            results = [each for each in results if term.lower() in _text(each)]
            continue
        name, sign, value = condition.groups()
        try:
            limit = float(value)
        except ValueError:
            raise BadInput(f"search term {term!r}: {value!r} is not a number; expected as in rows>1000") from None
        compare = _OPERATORS[sign]
        results = [each for each in results if any(compare(number, limit) for number in _numbers(each, name))]
    return results


def _text(dataset: Dataset) -> str:
    entry = dataset.entry
    of_features = (
        f"{name} {feature.get('type')} {' '.join(map(str, feature.get('top') or ()))}"
        for name, feature in entry.features.items()
    )
    return "\n".join([str(dataset.ref), entry.licence, entry.description, *of_features]).lower()


def _numbers(dataset: Dataset, name: str) -> Iterable[float]:
    """Yields the values of a figure, or of a statistic of all features of a name, with or without their table."""
    if name in _FIGURES:
        yield getattr(dataset.entry, name)
    elif name == "features":
        yield len(dataset.entry.features)
    feature, _, statistic = name.rpartition(".")
    for known, figures in dataset.entry.features.items():
        value = figures.get(statistic)
        if feature and feature in (known, known.partition(".")[2]) and isinstance(value, int | float):
            yield value
