"""Where a filter of runs goes wrong. MLflow says that it does, and seldom where.

The syntax, as https://mlflow.org/docs/latest/search-runs has it: comparisons joined by ``AND``, each of a ``metrics.``,
``params.``, ``tags.``, ``datasets.`` or attribute name, an operator, and a value. Odd names stand in backticks.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

ATTRIBUTES = ("run_name", "status", "start_time", "end_time", "run_id", "user_id", "artifact_uri", "created")
_NUMERIC = {"start_time", "end_time", "created"}
_ENTITIES = {
    "metric": "metrics", "metrics": "metrics",
    "parameter": "params", "parameters": "params", "param": "params", "params": "params",
    "tag": "tags", "tags": "tags",
    "attribute": "attributes", "attributes": "attributes", "attr": "attributes", "run": "attributes",
    "dataset": "datasets", "datasets": "datasets",
}  # fmt: skip
_OPERATORS = {
    "number": (">", ">=", "=", "!=", "<", "<="),
    "text": ("=", "!=", "LIKE", "ILIKE", "IN", "NOT IN", "IS NULL", "IS NOT NULL"),
}
_TOKENS = re.compile(
    r"(?P<space>\s+)|(?P<operator><=|>=|!=|=|<|>)"
    r"|(?P<number>-?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?(?![\w.]))"
    r"|(?P<name>[A-Za-z_][\w]*(?:\.(?:[\w/-]+|`[^`]*`|\"[^\"]*\"))*)"
    r"|(?P<text>'[^']*'|\"[^\"]*\")|(?P<list>\([^)]*\))|(?P<other>.)",
    re.DOTALL,
)


@dataclass(frozen=True)
class Fault:
    """What is wrong with a filter.

    Attributes:
        position: Characters before it.
        why: What was found and what was expected, in words.
    """

    position: int
    why: str


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str
    position: int


def explain(text: str) -> Fault | None:
    """The first thing in a filter that cannot be understood; None if nothing is found."""
    matches = _TOKENS.finditer(text)
    tokens = [_Token(str(m.lastgroup), m.group(), m.start()) for m in matches if m.lastgroup != "space"]
    position = 0
    while True:
        fault, position = _comparison(tokens, position, len(text))
        if fault is not None or position == len(tokens):
            return fault
        joint = tokens[position]
        if joint.text.upper() == "OR":
            return Fault(joint.position, "MLflow joins comparisons with AND alone, found OR")
        if joint.text.upper() != "AND":
            return Fault(joint.position, f"expected AND or the end, found {joint.text!r}")
        position += 1


def _comparison(tokens: list[_Token], first: int, end: int) -> tuple[Fault | None, int]:
    name = tokens[first] if first < len(tokens) else None
    if name is None:
        return Fault(end, "expected a comparison, such as metrics.auc > 0.7"), first
    if name.text[0] in "'\"":
        return Fault(name.position, f"expected a name, found the text {name.text}; odd names stand in `backticks`"), 0
    if name.kind != "name":
        return Fault(name.position, f"expected a name, such as metrics.auc, found {name.text!r}"), 0
    entity, key = _entity(name.text)
    if entity is None:
        return Fault(name.position, _unknown(name.text)), 0
    wanted = "number" if entity == "metrics" or key in _NUMERIC else "text"
    operator, after = _operator(tokens, first + 1)
    if operator is None:
        return _missing(tokens, first + 1, end, f"expected one of {_list(wanted)} after {name.text}"), 0
    if operator not in _OPERATORS[wanted]:
        place = tokens[first + 1].position
        return Fault(place, f"{name.text} is a {wanted} and takes {_list(wanted)}, found {operator}"), 0
    if operator.startswith("IS"):
        return None, after
    kinds = {"number": ("number",), "text": ("list",) if operator.endswith("IN") else ("text",)}[wanted]
    value = tokens[after] if after < len(tokens) else None
    if value is None or value.kind not in kinds:
        examples = {"number": "a number", "text": "a text in quotes, such as 'adam'", "list": "a list: ('a', 'b')"}
        return _missing(tokens, after, end, f"expected {examples[kinds[0]]} after {name.text} {operator}"), 0
    return None, after + 1


def _entity(name: str) -> tuple[str | None, str]:
    first, dot, key = name.partition(".")
    if not dot:
        return ("attributes", name) if name in ATTRIBUTES else (None, name)
    entity = _ENTITIES.get(first.lower())
    if entity == "attributes" and key not in ATTRIBUTES:
        return None, key
    return entity, key


def _operator(tokens: list[_Token], first: int) -> tuple[str | None, int]:
    for length in (3, 2, 1):
        words = " ".join(token.text.upper() for token in tokens[first : first + length])
        if len(tokens) >= first + length and words in {*_OPERATORS["number"], *_OPERATORS["text"]}:
            return words, first + length
    return None, first


def _unknown(name: str) -> str:
    if "." not in name:
        return f"{name!r} is no attribute ({', '.join(ATTRIBUTES)}); of a metric write metrics.{name}"
    if _ENTITIES.get(name.partition(".")[0].lower()) == "attributes":
        return f"{name!r}: the attributes are {', '.join(ATTRIBUTES)}"
    return f"{name!r}: expected metrics., params., tags., datasets. or attributes. before a name"


def _missing(tokens: list[_Token], at: int, end: int, expected: str) -> Fault:
    if at < len(tokens):
        return Fault(tokens[at].position, f"{expected}, found {tokens[at].text}")
    return Fault(end, f"{expected}, found the end")


def _list(kind: str) -> str:
    return " ".join(_OPERATORS[kind])
