"""The search language of training runs: comparisons joined by ``AND``, as in MLflow.

``metrics.auc > 0.8 AND params.lr = '0.1' AND tags.team LIKE 'pric%' AND status IN ('FAILED', 'KILLED')``

A name with other characters than letters, digits, ``_``, ``.``, ``/``, ``:`` and ``-`` is in backticks. A run that has
no value for a name matches only ``IS NULL``.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from airflow_hops.core.errors import BadInput

Getter = Callable[[Any], Any]
Matches = Callable[[Any], bool]

_TEXT = r"""'[^']*'|"[^"]*\""""
# Possessive, so that a long number is refused at once.
_NUMBER = r"-?(?:\d++(?:\.\d*+)?|\.\d++)(?:[eE][+-]?\d++)?"
_COMPARISON = re.compile(
    rf"""\s*(?P<name>(?:[A-Za-z]\w*\.)?(?:`[^`]*`|"[^"]*"|[A-Za-z_][\w./:-]*))\s*
    (?: IS\s+(?P<null>NOT\s+NULL|NULL)
      | (?P<among>NOT\s+IN|IN)\s*\((?P<list>\s*(?:{_TEXT})\s*(?:,\s*(?:{_TEXT})\s*)*)\)
      | (?P<operator><=|>=|!=|=|<|>|I?LIKE\b)\s*(?P<value>{_TEXT}|{_NUMBER})
    )\s*(?P<more>\bAND\b|$)""",
    re.IGNORECASE | re.VERBOSE,
)
_ENTITIES = {
    **dict.fromkeys(("metric", "metrics"), "metrics"),
    **dict.fromkeys(("param", "params", "parameter", "parameters"), "params"),
    **dict.fromkeys(("tag", "tags"), "tags"),
    **dict.fromkeys(("attr", "attribute", "attributes", "run"), ""),
}
_ORDERS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
_EQUALITIES = {"=": operator.eq, "!=": operator.ne}


def parse_filter(text: str, numbers: Mapping[str, Getter], texts: Mapping[str, Getter]) -> Matches:
    """Returns a function that tells whether a run matches a filter; all match an empty one.

    Args:
        text: The filter.
        numbers: Getters of the numbers that a run has, by name; ``metrics`` gets the mapping of all metrics.
        texts: Getters of its texts; ``params`` and ``tags`` get mappings.

    Raises:
        BadInput: the filter is invalid; the message has the position.
    """
    comparisons: list[Matches] = []
    position, is_more = 0, bool(text.strip())
    while is_more:
        comparison = _COMPARISON.match(text, position)
        if comparison is None:
            raise _invalid(
                position,
                f"expected a comparison such as metrics.auc > 0.8, params.lr = '0.1' or status = 'FAILED', followed by "
                f"AND or the end; found {text[position : position + 60].strip() or 'nothing'!r}",
            )
        comparisons.append(_comparison(comparison, numbers, texts))
        position, is_more = comparison.end(), bool(comparison["more"])
    return lambda run: all(matches(run) for matches in comparisons)


def _comparison(comparison: re.Match[str], numbers: Mapping[str, Getter], texts: Mapping[str, Getter]) -> Matches:
    position = comparison.start("name")
    get, is_number = _getter(comparison["name"], position, numbers, texts)
    if comparison["null"]:
        is_null = comparison["null"].upper() == "NULL"
        return lambda run: (get(run) is None) == is_null
    name, sign, value = comparison["name"], (comparison["operator"] or "").upper(), comparison["value"] or ""
    if is_number:
        if comparison["among"] or sign not in {**_ORDERS, **_EQUALITIES} or value[0] in "'\"":
            raise _invalid(
                comparison.start("name"), f"{name} is a number: compare it by <, <=, =, !=, >= or > with a number"
            )
        compare, wanted = {**_ORDERS, **_EQUALITIES}[sign], float(value)
        return lambda run: (number := get(run)) is not None and compare(number, wanted)
    if comparison["among"]:
        values = {each[1:-1] for each in re.findall(_TEXT, comparison["list"])}
        is_in = comparison["among"].upper() == "IN"
        return lambda run: (text := get(run)) is not None and (text in values) == is_in
    if sign in _ORDERS:
        raise _invalid(
            comparison.start("name"), f"{name} is text: compare it by =, !=, LIKE, ILIKE, IN, NOT IN or IS NULL"
        )
    if value[0] not in "'\"":
        raise _invalid(position, f"{name} is text: put the value in quotes, '{value}'")
    if sign in _EQUALITIES:
        equals, text = _EQUALITIES[sign], value[1:-1]
        return lambda run: (own := get(run)) is not None and equals(own, text)
    pattern = _like(value[1:-1], re.IGNORECASE if sign == "ILIKE" else 0)
    return lambda run: (own := get(run)) is not None and pattern.fullmatch(own) is not None


def _getter(
    name: str, position: int, numbers: Mapping[str, Getter], texts: Mapping[str, Getter]
) -> tuple[Getter, bool]:
    """Returns the getter of a name, and whether it gets numbers."""
    entity, dot, key = name.partition(".")
    kind = _ENTITIES.get(entity.lower()) if dot else ""
    if kind == "":
        attribute = (key if dot else name).strip('`"')
        for getters in (numbers, texts):
            if attribute in getters and attribute not in _ENTITIES:
                return getters[attribute], getters is numbers
    elif kind is not None:
        key, values = key.strip('`"'), numbers if kind == "metrics" else texts
        entries = values[kind]
        return lambda run: entries(run).get(key), kind == "metrics"
    attributes = [each for each in (*texts, *numbers) if each not in _ENTITIES]
    raise _invalid(
        position,
        f"unknown name {name!r}; expected metrics.<name>, params.<name>, tags.<name>, {', '.join(attributes)}",
    )


def _like(pattern: str, flags: int) -> re.Pattern[str]:
    """Returns SQL's ``LIKE`` as an expression, atomic, so that many ``%`` do not take long."""
    first, *rest = ("".join("." if char == "_" else re.escape(char) for char in part) for part in pattern.split("%"))
    between = "".join(f"(?>.*?{part})" for part in rest[:-1])
    return re.compile(first + between + (f".*{rest[-1]}" if rest else ""), flags | re.DOTALL)


def _invalid(position: int, why: str) -> BadInput:
    return BadInput(f"filter, character {position + 1}: {why}")


def natural_key(value: Sequence[Any] | str | float) -> tuple[Any, ...]:
    """Returns a sort key: numbers by value and before words, and numbers within words by value, too."""
    try:
        number = float(value)  # type: ignore[arg-type]
        if number == number:
            return (0, number)
    except (TypeError, ValueError):
        pass
    # Numbers of any length are compared by their digits; words come before numbers.
    parts = ((part, part.lstrip("0")) for part in re.split(r"(\d+)", str(value).casefold()))
    return (1, [(len(digits), digits) if part.isdecimal() else (-1, part) for part, digits in parts])
