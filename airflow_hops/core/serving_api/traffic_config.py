"""The bundled server's traffic file, in JSON: the shares of a model's versions.

Its form is::

    {"models": {"flights": {"1": 90, "2": 10}}}

The percents of a model are integers that sum to 100.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from airflow_hops.core.serving_api.config import ConfigError, PathLike, is_version, locked_file, read_text, write_file

Traffic = dict[str, dict[int, int]]
"""Model to version to percent; the percents of a model sum to 100."""

_FORM = '{"models": {MODEL: {VERSION: PERCENT}}}'


def parse_traffic(text: str, source: str) -> Traffic:
    """Parses a traffic file; an empty text means no split, and errors name ``source``.

    Raises:
        ConfigError: The text is not JSON, or a model's percents are not integers that sum to 100.
    """
    if not text.strip():
        return {}
    try:
        document = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{source}: is not JSON: {error}") from error
    if not isinstance(document, dict) or document.keys() != {"models"}:
        raise ConfigError(f"{source}: expected {_FORM}")
    if not isinstance(document["models"], dict):
        raise ConfigError(f"{source}: models is {document['models']!r}; expected {_FORM}")
    traffic: Traffic = {}
    for model, shares in document["models"].items():
        if not isinstance(shares, dict):
            raise ConfigError(f"{source}: models.{model} is {shares!r}; expected an object of version to percent")
        for version in shares:
            if not (version.isascii() and version.isdigit() and int(version) > 0):
                raise ConfigError(f"{source}: models.{model} names version {version!r}; expected a positive integer")
        traffic[model] = {int(version): percent for version, percent in shares.items()}
        check_split(traffic[model], f"{source}: models.{model}")
    return traffic


def read_traffic_config(traffic_file: PathLike) -> Traffic:
    """Reads a traffic file; a missing one means no split. Raises ConfigError if it is invalid."""
    if not Path(traffic_file).exists():
        return {}
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
    with locked_file(traffic_file):
        traffic = read_traffic_config(traffic_file)
        previous = traffic.pop(model, None)
        if percents is not None:
            traffic[model] = dict(percents)
        write_file(traffic_file, format_traffic(traffic))
    return previous


def format_traffic(traffic: Traffic) -> str:
    """Returns the text of a traffic file, sorted."""
    models = {
        name: {str(version): traffic[name][version] for version in sorted(traffic[name])} for name in sorted(traffic)
    }
    return json.dumps({"models": models}, indent=2) + "\n"


def check_split(split: Mapping[int, int], where: str) -> None:
    """Raises ConfigError, with ``where`` as prefix, unless the percents are integers that sum to 100."""
    for version, percent in split.items():
        if not is_version(version):
            raise ConfigError(f"{where} names version {version!r}; expected a positive integer")
        if not isinstance(percent, int) or isinstance(percent, bool) or not 0 <= percent <= 100:
            raise ConfigError(f"{where}.{version} is {percent!r}; expected an integer percent from 0 to 100")
    total = sum(split.values())
    if total != 100:
        shares = ", ".join(f"{version}: {percent}" for version, percent in split.items())
        raise ConfigError(f"{where} has percents {{{shares}}} that sum to {total}; expected 100")
