"""Reads and changes the file that lists the models to serve.

It is TensorFlow Serving's ``ModelServerConfig`` in protobuf text format, so the same file works for
``tensorflow_model_server``. The split of requests among versions is in a separate file (:mod:`.traffic_config`).

A change holds a lock beside the file and replaces the file by rename, so writers do not overwrite each other's
changes and readers never see half a file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal

from google.protobuf import text_format

from airflow_hops.core.processes.files import locked, staged
from airflow_hops.core.serving_api.protocol import ModelServerConfig

PathLike = str | os.PathLike[str]


class ConfigError(ValueError):
    """A config or traffic file, or a change to one, is invalid."""


def parse_config(text: str, source: str) -> Any:
    """Parses a ``ModelServerConfig`` in protobuf text format; empty text serves no model, and errors name ``source``.

    Raises:
        ConfigError: The text does not parse, lists a model twice or without a name, or has a relative base path.
    """
    config = _parse_message(text, ModelServerConfig(), source)
    check_config(config, source)
    return config


def read_message(path: PathLike, message: object) -> Any:
    """Reads a file in protobuf text format into a message and returns it; raises ConfigError if the file is invalid."""
    return _parse_message(read_text(path), message, os.fspath(path))


def _parse_message(text: str, message: Any, source: str) -> object:
    try:
        return text_format.Parse(text, message)
    except text_format.ParseError as error:
        name = message.DESCRIPTOR.name
        raise ConfigError(
            f"Invalid protobuf file: '{source}': Error parsing text-format tensorflow.serving.{name}: {error}"
        ) from error


def check_config(config: Any, source: str) -> None:
    """Raises ConfigError for a ``ModelServerConfig`` that TensorFlow Serving would refuse."""
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
    """Reads and checks a ``ModelServerConfig`` file; raises ConfigError if it is missing, unreadable or invalid."""
    return parse_config(read_text(config_file), os.fspath(config_file))


def init_config(config_file: PathLike) -> None:
    """Writes a config without models if the file does not exist, so that a server can start before the first deploy."""
    with locked_file(config_file):
        if not Path(config_file).exists():
            write_file(config_file, "model_config_list {\n}\n")


def set_model(
    config_file: PathLike,
    name: str,
    base_path: PathLike,
    versions: Sequence[int] | Literal["all", "latest"] = "latest",
    labels: Mapping[str, int] | None = None,
) -> Any:
    """Adds a model to the config file or replaces its entry; other models stay as they are.

    Args:
        config_file: The server's ``--model_config_file``; created if it is missing.
        name: Model name.
        base_path: Absolute folder whose integer-named folders are the versions.
        versions: Versions to serve, or a policy: "all", or "latest" (only the highest).
        labels: Label to version; None keeps the model's labels, {} removes them.

    Returns:
        The previous ``ModelConfig`` for ``restore_model``, or None if the model is new.

    Raises:
        ConfigError: An argument or the file is invalid; nothing is written then.
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
    """Does the work of :func:`set_model` in a ``ModelServerConfig`` message; errors name it ``source``."""
    if not isinstance(versions, str):
        bad = [version for version in versions if not is_version(version)]
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
    retained = labels if labels is not None else (previous.version_labels if previous else {})
    for label, version in retained.items():
        model.version_labels[label] = version
    return previous


def restore_model(config_file: PathLike, model: object) -> None:
    """Writes back a ``ModelConfig`` that ``set_model`` or ``remove_model`` returned."""
    change_config(config_file, lambda config: put_back_model(config, model))


def put_back_model(config: Any, model: Any) -> object:
    """Does the work of :func:`restore_model` in a message; returns the replaced entry, or None."""
    previous = take_model(config, model.name)
    config.model_config_list.config.add().CopyFrom(model)
    return previous


def remove_model(config_file: PathLike, name: str) -> object:
    """Removes a model from the config file, so that the server unloads it; returns its ``ModelConfig``, or None."""
    return change_config(config_file, lambda config: take_model(config, name))


def is_version(version: object) -> bool:
    """Returns whether a value is a positive integer."""
    return isinstance(version, int) and not isinstance(version, bool) and version > 0


def take_model(config: Any, name: str) -> Any:
    """Removes a model from a ``ModelServerConfig`` message; returns its ``ModelConfig``, or None."""
    models = config.model_config_list.config
    for index, model in enumerate(models):
        if model.name == name:
            taken = type(model)()
            taken.CopyFrom(model)
            del models[index]
            return taken
    return None


def format_config(config: object) -> str:
    """Returns a ``ModelServerConfig`` in protobuf text format."""
    return str(text_format.MessageToString(config))


def change_config(config_file: PathLike, change: Callable[[Any], Any]) -> Any:
    """Applies a function to the ``ModelServerConfig`` of a file, and returns the function's result.

    Raises:
        ConfigError: The file or the changed config is invalid; nothing is written then.
    """
    with locked_file(config_file):
        config = read_config(config_file) if Path(config_file).exists() else parse_config("", "")
        result = change(config)
        config.model_config_list.SetInParent()
        check_config(config, os.fspath(config_file))
        write_file(config_file, format_config(config))
    return result


def read_text(path: PathLike) -> str:
    """Reads a file; raises ConfigError if it is missing or unreadable."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ConfigError(f"{os.fspath(path)}: no such file") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{os.fspath(path)}: cannot be read: {error}") from error


def locked_file(path: PathLike) -> AbstractContextManager[None]:
    """Holds the lock of a file; a separate lock file is needed, as the file itself is replaced by rename."""
    target = Path(path)
    return locked(target.with_name(f".{target.name}.lock"))


def write_file(path: PathLike, text: str) -> None:
    """Replaces a file by rename, and preserves its mode."""
    target = Path(path)
    with staged(target, durable=True) as staging:
        staging.write_text(text, encoding="utf-8")
        staging.chmod(target.stat().st_mode & 0o777 if target.exists() else 0o644)
