"""Types of operators' arguments, by which literals are checked while the DAG is parsed.

The annotations of an operator's constructor are the check: ``np: Count`` refuses "2" and 0. Templates
and outputs of other tasks are not known before the task runs; the step checks their values.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict

from airflow.sdk import XComArg

from airflow_hops.airflow_internals.tasks import ResolveMixin
from airflow_hops.core.errors import BadInput, InvalidArgument
from airflow_hops.core.models.model_record import MODEL_NAME, MODEL_NAME_IN_WORDS
from airflow_hops.core.names import suggestion
from airflow_hops.core.times import as_utc


class BadArgument(BadInput, ValueError):
    """A literal in a DAG file has another type or value than the argument."""


@dataclass(frozen=True)
class Rule:
    """Requirement on a value, and the expected value in words."""

    holds: Callable[[Any], bool]
    words: str


def _is_time(text: str) -> bool:
    try:
        as_utc(text)
    except ValueError:
        return False
    return True


Percent = Annotated[int, Rule(lambda value: 1 <= value <= 100, "a whole number from 1 to 100")]
Count = Annotated[int, Rule(lambda value: value >= 1, "a whole number, 1 or more")]
WholeNumber = Annotated[int, Rule(lambda value: value >= 0, "a whole number, 0 or more")]
Share = Annotated[float, Rule(lambda value: 0 <= value <= 1, "a share from 0 to 1")]
Probability = Annotated[float, Rule(lambda value: 0 < value < 1, "a number above 0 and below 1")]
NotNegative = Annotated[float, Rule(lambda value: value >= 0, "a number, 0 or more")]
Positive = Annotated[float, Rule(lambda value: 0 < value < math.inf, "a number above 0")]
ModelName = Annotated[str, Rule(lambda name: MODEL_NAME.fullmatch(name) is not None, MODEL_NAME_IN_WORDS)]
FolderName = Annotated[
    str, Rule(lambda name: bool(name) and "/" not in name and not name.startswith("."), "a name that can be a folder's")
]
FunctionName = Annotated[
    str | Callable[..., Any],
    Rule(
        lambda name: re.fullmatch(r"\w+(\.\w+)*:\w+", name) is not None,
        "a function of a module beside the DAG file, or its name, 'module:function'",
    ),
]
Length = Annotated[timedelta, Rule(lambda value: value > timedelta(0), "a timedelta above 0")]
Age = Annotated[timedelta, Rule(lambda value: value >= timedelta(0), "a timedelta, 0 or more")]
Time = Annotated[str, Rule(_is_time, "a time in ISO 8601, such as 2024-12-31T00:00:00Z")]
Version = Annotated[
    int | str, Rule(lambda value: str(value).isdigit() and int(value) >= 1, "a version's number, 1 or more")
]


def check_arguments(constructor: Callable[..., Any], arguments: Mapping[str, Any], templated: Collection[str]) -> None:
    """Checks arguments of an operator by the annotations of its constructor.

    Args:
        constructor: The ``__init__`` of the class that takes the arguments, or a function.
        arguments: The arguments by name.
        templated: Names of those that may be templates or outputs of other tasks.

    Raises:
        BadArgument: a literal has another type or value.
    """
    for name, (hint, default) in _annotations(inspect.unwrap(constructor)).items():
        if name in arguments and arguments[name] is not default:
            _check(name, arguments[name], hint, name in templated)


def named_functions(
    constructor: Callable[..., None], arguments: Mapping[str, object], name_of: Callable[[Any], str]
) -> Iterator[tuple[str, object]]:
    """Yields those arguments of an operator that are functions, or tuples with one by name, with their names instead.

    Args:
        constructor: The ``__init__`` of the class that takes the arguments.
        arguments: The arguments by name.
        name_of: Returns ``module:function`` of a function.
    """
    for name, (hint, _) in _annotations(inspect.unwrap(constructor)).items():
        value, kinds = arguments.get(name), _alternatives(hint)
        if FunctionName in kinds and _is_function(value):
            yield name, name_of(value)
        elif isinstance(value, Mapping) and any(FunctionName in _of_values(kind) for kind in kinds):
            yield (
                name,
                {
                    key: (name_of(item[0]), *item[1:])
                    if isinstance(item, list | tuple) and item and _is_function(item[0])
                    else item
                    for key, item in value.items()
                },
            )


def argument_with(constructor: Callable[..., None], field: str) -> str | None:
    """Returns the argument of a constructor that is a mapping with a field of this name, if there is one."""
    try:
        hints = _annotations(inspect.unwrap(constructor))
    except NameError:  # of another package, whose annotations are for type checkers only
        return None
    mappings = ((name, each) for name, (hint, _) in hints.items() for each in _alternatives(hint) if is_typeddict(each))
    return next((name for name, each in mappings if field in each.__annotations__), None)


def _is_function(value: object) -> bool:
    return callable(value) and not is_output(value)


def _of_values(hint: object) -> tuple[object, ...]:
    """Returns the types in the tuples that are a mapping's values."""
    return get_args(get_args(hint)[1]) if get_origin(hint) is Mapping else ()


@cache
def _annotations(constructor: Callable[..., Any]) -> dict[str, tuple[object, object]]:
    """Returns type and default of each argument."""
    try:
        hints = get_type_hints(constructor, include_extras=True)
    except NameError:  # a user's operator may import types only for type checkers
        return {}
    defaults = {name: parameter.default for name, parameter in inspect.signature(constructor).parameters.items()}
    return {name: (hint, defaults[name]) for name, hint in hints.items() if name not in ("return", "kwargs")}


def is_output(value: object) -> bool:
    """Returns whether a value is the output of a task, or an argument of a mapped task group."""
    return isinstance(value, ResolveMixin)


def is_late(value: object) -> bool:
    """Returns whether a value is known only when the task runs: a template or an output."""
    return is_output(value) or (isinstance(value, str) and re.search(r"{{.*}}|{%.*%}", value, re.DOTALL) is not None)


def holds_late(value: object) -> bool:
    """Returns whether a value, or one in a mapping, is known only when the task runs."""
    return is_late(value) or (isinstance(value, Mapping) and any(map(is_late, value.values())))


def rendered_mapping(name: str, value: object) -> dict[str, object]:
    """Returns an argument that could be late, when the task runs; empty for None.

    Raises:
        BadInput: it is not a mapping.
    """
    if value is not None and not isinstance(value, Mapping):
        raise InvalidArgument(name, value, ", expected a mapping, as of a task that returns a dict")
    return dict(value or {})


def _check(name: str, value: Any, hint: object, templated: bool) -> None:
    late = is_late(value)
    if templated and late:
        return
    accepted = next((each for each in _alternatives(hint) if _has_type(value, each)), None)
    fits = accepted is not None and all(rule.holds(value) for rule in getattr(accepted, "__metadata__", ()))
    # A template that is never rendered, such as a column name, is a text.
    is_any_text = accepted is Any or (accepted is str and isinstance(value, str))
    if not fits or (late and not is_any_text):
        choices = [choice for each in _alternatives(hint) if get_origin(each) is Literal for choice in get_args(each)]
        end = "; the argument is not templated" if late else suggestion(str(value), choices)
        raise BadArgument(f"{name} is {value!r}, expected {_in_words(hint)}{end}")
    kinds = get_args(accepted)
    if get_origin(accepted) is Mapping:
        for key, item in value.items():
            _check(f"a key of {name}", key, kinds[0], templated)
            _check(f"{name}[{key!r}]", item, kinds[1], templated)
    elif is_typeddict(accepted):
        _check_fields(name, value, accepted, templated)
    elif get_origin(accepted) is tuple:
        for index, (item, of_item) in enumerate(zip(value, kinds, strict=True)):
            _check(f"{name}[{index}]", item, of_item, templated)
    elif _is_list(accepted):
        for index, item in enumerate(value):
            _check(f"{name}[{index}]", item, kinds[0], templated)


def _check_fields(name: str, value: Mapping[str, Any], kind: Any, templated: bool) -> None:
    """Checks the names and values of a mapping by the annotations of a ``TypedDict``."""
    hints = get_type_hints(kind, include_extras=True)
    for field in {**value, **dict.fromkeys(kind.__required_keys__)}:
        if field not in hints or field not in value:
            problem = "has no field" if field not in hints else "lacks the field"
            close = suggestion(str(field), hints) if field not in hints else ""
            raise BadArgument(f"{name} {problem} {field!r}; its fields are {', '.join(hints)}{close}")
        _check(f"{name}[{field!r}]", value[field], hints[field], templated)


def _alternatives(hint: object) -> list[object]:
    """Returns the members of a union, or the type itself."""
    if get_origin(hint) in (UnionType, Union):
        return [alternative for each in get_args(hint) for alternative in _alternatives(each)]
    return [hint]


def _is_list(hint: object) -> bool:
    origin = get_origin(hint)
    return isinstance(origin, type) and issubclass(origin, Collection) and not issubclass(origin, Mapping)


def _has_type(value: Any, hint: Any) -> bool:
    """Returns whether a value has a type, without checking the items of collections."""
    origin = get_origin(hint)
    if origin is Annotated:
        return any(_has_type(value, each) for each in _alternatives(get_args(hint)[0]))
    if origin is Literal:
        return value in get_args(hint)
    if hint in (int, float):
        return isinstance(value, Integral if hint is int else Real) and not isinstance(value, bool)
    if origin is tuple:
        return isinstance(value, list | tuple) and len(value) == len(get_args(hint))
    if _is_list(hint):
        return isinstance(value, origin) and not isinstance(value, str | bytes | Mapping)
    if is_typeddict(hint):
        return isinstance(value, Mapping)
    return hint is Any or isinstance(value, origin or hint)


def _in_words(hint: Any) -> str:
    origin = get_origin(hint)
    if origin in (UnionType, Union):
        return ", or ".join(dict.fromkeys(map(_in_words, get_args(hint))))
    if origin is Annotated:
        return str(get_args(hint)[1].words)
    if origin is Literal:
        return ("one of " if len(get_args(hint)) > 1 else "") + ", ".join(map(repr, get_args(hint)))
    if origin is tuple:
        return f"({', '.join(map(_in_words, get_args(hint)))})"
    if _is_list(hint):
        return f"a list of {_in_words(get_args(hint)[0])}"
    if is_typeddict(hint):
        return f"a mapping with {', '.join(hint.__annotations__)}"
    named = {
        str: "text", int: "a whole number", float: "a number", bool: "True or False", NoneType: "None",
        Mapping: "a mapping", Callable: "a function", XComArg: "the output of a task",
    }  # fmt: skip
    return named.get(origin or hint) or f"a {hint.__name__}"
