"""The two files that say what the model server serves: ModelServerConfig and the traffic split.

The first is TensorFlow Serving's own ``ModelServerConfig`` in protobuf text format, so that the same file drives a
``tensorflow_model_server``. The second is ours, JSON::

    {"models": {"flights": {"1": 90, "2": 10}}, "shadow": {"flights": {"3": 50}}}

Percents are integers that sum to 100 for each model; under "shadow" each is the share of a model's requests of which a
copy goes to that version or label, to be compared and never returned. One of the two fields may be left out.

Every change is read, changed and written under a lock beside the file, and appears by rename: two writers never lose
each other's change, and a reader never sees half a file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from google.protobuf import text_format

from airflow_hops.processes.files import staged
from airflow_hops.processes.locks import locked
from airflow_hops.serving_api.protocol import ModelServerConfig

PathLike = str | os.PathLike[str]
Traffic = dict[str, dict[int, int]]
_Target = TypeVar("_Target", int, int | str)
_Result = TypeVar("_Result")
Shadow = dict[str, dict[int | str, int]]

_TRAFFIC_FORM = (
    '{"models": {MODEL: {VERSION: PERCENT}}, "shadow": {MODEL: {VERSION or LABEL: PERCENT}}}, one of the two at least'
)


class ConfigError(ValueError):
    """A config or traffic file, or a change to one, that cannot be taken."""


@dataclass(frozen=True)
class TrafficConfig:
    """The contents of a traffic file.

    Attributes:
        models: Model to version to percent; the percents of a model sum to 100.
        shadow: Model to version (int) or label (str) to the percent of requests of which it gets a copy.
    """

    models: Traffic = field(default_factory=dict)
    shadow: Shadow = field(default_factory=dict)


def parse_config(text: str, source: str) -> Any:
    """Parses and checks a ``ModelServerConfig``.

    Args:
        text: Protobuf text format; an empty text serves no model.
        source: What to call the text in errors (a file name).

    Returns:
        The ``ModelServerConfig`` message.

    Raises:
        ConfigError: It does not parse, names a model twice or without a name, or gives a relative base path.
    """
    config = _parse_message(text, ModelServerConfig(), source)
    check_config(config, source)
    return config


def read_message(path: PathLike, message: Any) -> Any:
    """Reads a file in protobuf text format into a message, and returns that.

    Raises:
        ConfigError: The file is missing, unreadable or does not parse.
    """
    return _parse_message(_read_text(path), message, os.fspath(path))


def _parse_message(text: str, message: Any, source: str) -> Any:
    try:
        return text_format.Parse(text, message)
    except text_format.ParseError as error:
        name = message.DESCRIPTOR.name
        raise ConfigError(
            f"Invalid protobuf file: '{source}': Error parsing text-format tensorflow.serving.{name}: {error}"
        ) from error


def check_config(config: Any, source: str) -> None:
    """Raises ConfigError where TensorFlow Serving would refuse a ``ModelServerConfig``."""
    if config.WhichOneof("config") == "custom_model_config":
        raise ConfigError(f"{source}: custom_model_config is not supported; expected model_config_list")
    seen: set[str] = set()
    for model in config.model_config_list.config:
        if not model.name:
            raise ConfigError(f"{source}: field 'name' of the model with base_path {model.base_path!r} is empty")
        if model.name in seen:
            raise ConfigError(f"{source}: Illegal to list model {model.name} multiple times in config list")
        seen.add(model.name)
        if "://" not in model.base_path and not Path(model.base_path).is_absolute():
            raise ConfigError(
                f"{source}: Expected model {model.name} to have an absolute path or URI; "
                f"got base_path()={model.base_path}"
            )
        policy = model.model_version_policy
        if policy.WhichOneof("policy_choice") == "specific" and not policy.specific.versions:
            raise ConfigError(f"{source}: model {model.name}: field 'specific' names no version; expected one or more")
        for label, version in model.version_labels.items():
            if version <= 0:
                raise ConfigError(
                    f"{source}: model {model.name}: version_labels[{label!r}] is {version}; expected a positive version"
                )


def read_config(config_file: PathLike) -> Any:
    """Reads and checks a ``ModelServerConfig`` file.

    Raises:
        ConfigError: The file is missing, unreadable, does not parse or is not valid.
    """
    return parse_config(_read_text(config_file), os.fspath(config_file))


def init_config(config_file: PathLike) -> None:
    """Writes a config that serves no model, unless the file is there: a server can start before the first deploy."""
    with _locked(config_file):
        if not Path(config_file).exists():
            _write_atomically(config_file, "model_config_list {\n}\n")


def set_model(
    config_file: PathLike,
    name: str,
    base_path: PathLike,
    versions: Sequence[int] | Literal["all", "latest"] = "latest",
    labels: Mapping[str, int] | None = None,
) -> Any:
    """Adds a model to the config file or replaces its entry, leaving every other model as it is.

    Args:
        config_file: The server's ``--model_config_file``; made when it is missing.
        name: Model name.
        base_path: Absolute folder whose integer-named folders are the versions.
        versions: Versions to serve, or a policy: "all", or "latest" (the highest alone).
        labels: Label to version; None keeps the labels that the model has, {} removes them.

    Returns:
        The ``ModelConfig`` that was replaced, or None: write it back with ``restore_model`` to undo the change.

    Raises:
        ConfigError: An argument or the file is not valid; nothing is written then.
    """
    source = os.fspath(config_file)
    return change_config(config_file, lambda config: put_model(config, source, name, base_path, versions, labels))


def put_model(
    config: Any,
    source: str,
    name: str,
    base_path: PathLike,
    versions: Sequence[int] | Literal["all", "latest"] = "latest",
    labels: Mapping[str, int] | None = None,
) -> Any:
    """As :func:`set_model`, in a ``ModelServerConfig`` message, which errors call ``source``."""
    if not isinstance(versions, str):
        bad = [version for version in versions if not _is_version(version)]
        if bad or not versions:
            raise ConfigError(
                f"{source}: model {name}: versions is {list(versions)!r}; expected one or more positive integers"
            )
    elif versions not in ("all", "latest"):
        raise ConfigError(f"{source}: model {name}: versions is {versions!r}; expected 'all', 'latest' or numbers")
    previous = take_model(config, name)
    model = config.model_config_list.config.add(name=name, base_path=os.fspath(base_path), model_platform="tensorflow")
    if versions == "all":
        model.model_version_policy.all.SetInParent()
    elif versions == "latest":
        model.model_version_policy.latest.num_versions = 1
    else:
        model.model_version_policy.specific.versions.extend(sorted(set(versions)))
    kept = labels if labels is not None else (previous.version_labels if previous else {})
    for label, version in kept.items():
        model.version_labels[label] = version
    return previous


def restore_model(config_file: PathLike, model: Any) -> None:
    """Writes a ``ModelConfig`` back as ``set_model`` or ``remove_model`` returned it."""
    change_config(config_file, lambda config: put_back_model(config, model))


def put_back_model(config: Any, model: Any) -> Any:
    """As :func:`restore_model`, in a ``ModelServerConfig`` message."""
    previous = take_model(config, model.name)
    config.model_config_list.config.add().CopyFrom(model)
    return previous


def remove_model(config_file: PathLike, name: str) -> Any:
    """Takes a model out of the config file; its server unloads it.

    Returns:
        The ``ModelConfig`` that was there, or None.
    """
    return change_config(config_file, lambda config: take_model(config, name))


def parse_traffic(text: str, source: str) -> TrafficConfig:
    """Parses and checks a traffic file.

    Args:
        text: JSON as in the module's docstring; an empty text means no split and no shadow traffic.
        source: What to call the text in errors.

    Raises:
        ConfigError: It is not JSON, or a model's percents are not integers that sum to 100.
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
    """Reads a traffic file; a missing one means no split and no shadow traffic.

    Raises:
        ConfigError: The file is not readable or not valid.
    """
    if not Path(traffic_file).exists():
        return TrafficConfig()
    return parse_traffic(_read_text(traffic_file), os.fspath(traffic_file))


def read_traffic(traffic_file: PathLike) -> Traffic:
    """Reads the splits of a traffic file: model to version to percent; a missing file has none.

    Raises:
        ConfigError: The file is not readable or not valid.
    """
    return read_traffic_config(traffic_file).models


def set_traffic(traffic_file: PathLike, model: str, percents: Mapping[int, int] | None) -> dict[int, int] | None:
    """Sets the split of one model, leaving everything else as it is.

    Args:
        traffic_file: The server's ``--traffic_config_file``; made when it is missing.
        model: Model name.
        percents: Version to percent, integers that sum to 100; None removes the split, so that the latest version
            answers.

    Returns:
        The split that was replaced, or None where there was none: pass it back to undo the change.

    Raises:
        ConfigError: The split or the file is not valid; nothing is written then.
    """
    if percents is not None:
        check_split(percents, f"{os.fspath(traffic_file)}: models.{model}")
    return _change_traffic(traffic_file, lambda traffic: _replace(traffic.models, model, percents))


def set_shadow(
    traffic_file: PathLike, model: str, percents: Mapping[int | str, int] | None
) -> dict[int | str, int] | None:
    """Sets the shadow traffic of one model, leaving everything else as it is.

    Args:
        traffic_file: The server's ``--traffic_config_file``; made when it is missing.
        model: Model name.
        percents: Version (int) or label (str) to the percent of requests of which it gets a copy, each an integer from
            0 to 100; None ends the shadow traffic.

    Returns:
        What was replaced, or None where there was none: pass it back to undo the change.

    Raises:
        ConfigError: The percents or the file are not valid; nothing is written then.
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
    with _locked(traffic_file):
        traffic = read_traffic_config(traffic_file)
        result = change(traffic)
        document = {"models": _as_json(traffic.models)}
        if traffic.shadow:
            document["shadow"] = _as_json(traffic.shadow)
        _write_atomically(traffic_file, json.dumps(document, indent=2) + "\n")
    return result


def _as_json(section: Mapping[str, Mapping[Any, int]]) -> dict[str, dict[str, int]]:
    return {
        model: {str(version): shares[version] for version in sorted(shares, key=str)}
        for model, shares in sorted(section.items())
    }


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and int(text) > 0


def _is_version(version: object) -> bool:
    return isinstance(version, int) and not isinstance(version, bool) and version > 0


def check_split(split: Mapping[int, int], where: str) -> None:
    """Raises ConfigError, its message beginning with ``where``, unless percents are integers that sum to 100."""
    for version in split:
        if not _is_version(version):
            raise ConfigError(f"{where} names version {version!r}; expected a positive integer")
    _check_percents(split, where)
    total = sum(split.values())
    if total != 100:
        shares = ", ".join(f"{version}: {percent}" for version, percent in split.items())
        raise ConfigError(f"{where} has percents {{{shares}}} that sum to {total}; expected 100")


def check_shadow(percents: Mapping[int | str, int], where: str) -> None:
    """Raises ConfigError, its message beginning with ``where``, unless versions or labels have percents."""
    for target in percents:
        if not (_is_version(target) or (isinstance(target, str) and target and not target.isdigit())):
            raise ConfigError(f"{where} names {target!r}; expected a version (a positive integer) or a label")
    _check_percents(percents, where)


def _check_percents(percents: Mapping[Any, int], where: str) -> None:
    for target, percent in percents.items():
        if not isinstance(percent, int) or isinstance(percent, bool) or not 0 <= percent <= 100:
            raise ConfigError(f"{where}.{target} is {percent!r}; expected an integer percent from 0 to 100")


def take_model(config: Any, name: str) -> Any:
    """Takes a model out of a ``ModelServerConfig`` message; returns its ``ModelConfig``, or None."""
    models = config.model_config_list.config
    for index, model in enumerate(models):
        if model.name == name:
            taken = type(model)()
            taken.CopyFrom(model)
            del models[index]
            return taken
    return None


def format_config(config: Any) -> str:
    """A ``ModelServerConfig`` in protobuf text format."""
    return str(text_format.MessageToString(config))


def change_config(config_file: PathLike, change: Callable[[Any], Any]) -> Any:
    """Has a function change the ``ModelServerConfig`` of a file.

    Returns:
        What the function returns.

    Raises:
        ConfigError: The file or what the function makes of it is not valid; nothing is written then.
    """
    with _locked(config_file):
        config = read_config(config_file) if Path(config_file).exists() else parse_config("", "")
        result = change(config)
        config.model_config_list.SetInParent()
        check_config(config, os.fspath(config_file))
        _write_atomically(config_file, format_config(config))
    return result


def _read_text(path: PathLike) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ConfigError(f"{os.fspath(path)}: no such file") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{os.fspath(path)}: cannot be read: {error}") from error


def _locked(path: PathLike) -> AbstractContextManager[None]:
    """Holds the lock of a file that is replaced by rename, and so cannot carry the lock itself."""
    target = Path(path)
    return locked(target.with_name(f".{target.name}.lock"))


def _write_atomically(path: PathLike, text: str) -> None:
    target = Path(path)
    with staged(target, durable=True) as staging:
        staging.write_text(text, encoding="utf-8")
        staging.chmod(target.stat().st_mode & 0o777 if target.exists() else 0o644)
