"""The bundled server's traffic file, in JSON: shares of versions, and of copied requests (shadow traffic).

Its form is::

    {"models": {"flights": {"1": 90, "2": 10}}, "shadow": {"flights": {"3": 50}}}

The percents of a model are integers that sum to 100. Under "shadow", a percent is the share of a model's requests that
are copied to a version or label; its answers are compared, but never returned. One of the two fields may be omitted.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from airflow_hops.core.serving_api.config import ConfigError, PathLike, is_version, locked_file, read_text, write_file

Traffic = dict[str, dict[int, int]]
_Target = TypeVar("_Target", int, int | str)
_Result = TypeVar("_Result")
Shadow = dict[str, dict[int | str, int]]

_TRAFFIC_FORM = (
    '{"models": {MODEL: {VERSION: PERCENT}}, "shadow": {MODEL: {VERSION or LABEL: PERCENT}}}, one of the two at least'
)


@dataclass(frozen=True)
class TrafficConfig:
    """Contents of a traffic file.

    Attributes:
        models: Model to version to percent; the percents of a model sum to 100.
        shadow: Model to version (int) or label (str) to the percent of requests that are copied to it.
    """

    models: Traffic = field(default_factory=dict)
    shadow: Shadow = field(default_factory=dict)


def parse_traffic(text: str, source: str) -> TrafficConfig:
    """Parses a traffic file; an empty text means no split and no shadow traffic, and errors name ``source``.

    Raises:
        ConfigError: The text is not JSON, or a model's percents are not integers that sum to 100.
    """
    if not text.strip():
        return TrafficConfig()
    try:
        document = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{source}: is not JSON: {error}") from error
    if not isinstance(document, dict) or not document or document.keys() - {"models", "shadow"}:
        raise ConfigError(f"{source}: expected {_TRAFFIC_FORM}")
    traffic = TrafficConfig()
    for model, shares in _section(document, "models", source):
        for version in shares:
            if not _is_number(version):
                raise ConfigError(f"{source}: models.{model} names version {version!r}; expected a positive integer")
        traffic.models[model] = {int(version): percent for version, percent in shares.items()}
        check_split(traffic.models[model], f"{source}: models.{model}")
    for model, shares in _section(document, "shadow", source):
        traffic.shadow[model] = {int(to) if _is_number(to) else to: percent for to, percent in shares.items()}
        check_shadow(traffic.shadow[model], f"{source}: shadow.{model}")
    return traffic


def read_traffic_config(traffic_file: PathLike) -> TrafficConfig:
    """Reads a traffic file; a missing one means no split and no shadow traffic. Raises ConfigError if it is invalid."""
    if not Path(traffic_file).exists():
        return TrafficConfig()
    return parse_traffic(read_text(traffic_file), os.fspath(traffic_file))


def set_traffic(traffic_file: PathLike, model: str, percents: Mapping[int, int] | None) -> dict[int, int] | None:
    """Sets the split of one model; everything else stays as it is.

    Args:
        traffic_file: The server's ``--traffic_config_file``; created if it is missing.
        model: Model name.
        percents: Version to percent, integers that sum to 100; None lets the latest version answer.

    Returns:
        The previous split, with which the change can be undone; None if there was none.

    Raises:
        ConfigError: The split or the file is invalid; nothing is written then.
    """
    if percents is not None:
        check_split(percents, f"{os.fspath(traffic_file)}: models.{model}")
    return _change_traffic(traffic_file, lambda traffic: _replace(traffic.models, model, percents))


def set_shadow(
    traffic_file: PathLike, model: str, percents: Mapping[int | str, int] | None
) -> dict[int | str, int] | None:
    """Sets the shadow traffic of one model; everything else stays as it is.

    Returns the previous value and raises errors as :func:`set_traffic` does.

    Args:
        traffic_file: The server's ``--traffic_config_file``; created if it is missing.
        model: Model name.
        percents: Version (int) or label (str) to the percent of requests that are copied to it, integers from 0 to
            100; None ends the shadow traffic.
    """
    if percents is not None:
        check_shadow(percents, f"{os.fspath(traffic_file)}: shadow.{model}")
    return _change_traffic(traffic_file, lambda traffic: _replace(traffic.shadow, model, percents))


def _section(document: Mapping[str, Any], name: str, source: str) -> list[tuple[str, Mapping[str, Any]]]:
    section = document.get(name, {})
    if not isinstance(section, dict):
        raise ConfigError(f"{source}: {name} is {section!r}; expected {_TRAFFIC_FORM}")
    for model, shares in section.items():
        if not isinstance(shares, dict):
            raise ConfigError(f"{source}: {name}.{model} is {shares!r}; expected an object of version to percent")
    return list(section.items())


def _replace(
    section: dict[str, dict[_Target, int]], model: str, percents: Mapping[_Target, int] | None
) -> dict[_Target, int] | None:
    previous = section.pop(model, None)
    if percents is not None:
        section[model] = dict(percents)
    return previous


def _change_traffic(traffic_file: PathLike, change: Callable[[TrafficConfig], _Result]) -> _Result:
    with locked_file(traffic_file):
        traffic = read_traffic_config(traffic_file)
        result = change(traffic)
        document = {"models": _as_json(traffic.models)}
        if traffic.shadow:
            document["shadow"] = _as_json(traffic.shadow)
        write_file(traffic_file, json.dumps(document, indent=2) + "\n")
    return result


def _as_json(section: Mapping[str, Mapping[Any, int]]) -> dict[str, dict[str, int]]:
    return {
        model: {str(version): shares[version] for version in sorted(shares, key=str)}
        for model, shares in sorted(section.items())
    }


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and int(text) > 0


def check_split(split: Mapping[int, int], where: str) -> None:
    """Raises ConfigError, with ``where`` as prefix, unless the percents are integers that sum to 100."""
    for version in split:
        if not is_version(version):
            raise ConfigError(f"{where} names version {version!r}; expected a positive integer")
    _check_percents(split, where)
    total = sum(split.values())
    if total != 100:
        shares = ", ".join(f"{version}: {percent}" for version, percent in split.items())
        raise ConfigError(f"{where} has percents {{{shares}}} that sum to {total}; expected 100")


def check_shadow(percents: Mapping[int | str, int], where: str) -> None:
    """Raises ConfigError, with ``where`` as prefix, unless all keys are versions or labels and all values percents."""
    for target in percents:
        if not (is_version(target) or (isinstance(target, str) and target and not target.isdigit())):
            raise ConfigError(f"{where} names {target!r}; expected a version (a positive integer) or a label")
    _check_percents(percents, where)


def _check_percents(percents: Mapping[Any, int], where: str) -> None:
    for target, percent in percents.items():
        if not isinstance(percent, int) or isinstance(percent, bool) or not 0 <= percent <= 100:
            raise ConfigError(f"{where}.{target} is {percent!r}; expected an integer percent from 0 to 100")
