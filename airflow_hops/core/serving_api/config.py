"""The file that says what the model server serves, and how such files are read and changed.

It is TensorFlow Serving's own ``ModelServerConfig`` in protobuf text format, so that the same file drives a
``tensorflow_model_server``. How requests are split among versions is in another (:mod:`.traffic_config`).

Every change is read, changed and written under a lock beside the file, and appears by rename: two writers never lose
each other's change, and a reader never sees half a file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal

from google.protobuf import text_format

from airflow_hops.core.processes.files import staged
from airflow_hops.core.processes.locks import locked
from airflow_hops.core.serving_api.protocol import ModelServerConfig

PathLike = str | os.PathLike[str]


class ConfigError(ValueError):
    """A config or traffic file, or a change to one, that cannot be taken."""


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
    return _parse_message(read_text(path), message, os.fspath(path))


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
    return parse_config(read_text(config_file), os.fspath(config_file))


def init_config(config_file: PathLike) -> None:
    """Writes a config that serves no model, unless the file is there: a server can start before the first deploy."""
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
    """Like :func:`set_model`, in a ``ModelServerConfig`` message, which errors call ``source``."""
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


def restore_model(config_file: PathLike, model: Any) -> None:
    """Writes a ``ModelConfig`` back as ``set_model`` or ``remove_model`` returned it."""
    change_config(config_file, lambda config: put_back_model(config, model))


def put_back_model(config: Any, model: Any) -> Any:
    """Like :func:`restore_model`, in a ``ModelServerConfig`` message."""
    previous = take_model(config, model.name)
    config.model_config_list.config.add().CopyFrom(model)
    return previous


def remove_model(config_file: PathLike, name: str) -> Any:
    """Takes a model out of the config file; its server unloads it.

    Returns:
        The ``ModelConfig`` that was there, or None.
    """
    return change_config(config_file, lambda config: take_model(config, name))


def is_version(version: object) -> bool:
    """Whether a value is a positive integer."""
    return isinstance(version, int) and not isinstance(version, bool) and version > 0


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
    with locked_file(config_file):
        config = read_config(config_file) if Path(config_file).exists() else parse_config("", "")
        result = change(config)
        config.model_config_list.SetInParent()
        check_config(config, os.fspath(config_file))
        write_file(config_file, format_config(config))
    return result


def read_text(path: PathLike) -> str:
    """Reads a file.

    Raises:
        ConfigError: It is missing or unreadable.
    """
    try:
        return Path(path).read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ConfigError(f"{os.fspath(path)}: no such file") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{os.fspath(path)}: cannot be read: {error}") from error


def locked_file(path: PathLike) -> AbstractContextManager[None]:
    """Holds the lock of a file that is replaced by rename, and so cannot carry the lock itself."""
    target = Path(path)
    return locked(target.with_name(f".{target.name}.lock"))


def write_file(path: PathLike, text: str) -> None:
    """Replaces a file by a rename; it keeps its mode."""
    target = Path(path)
    with staged(target, durable=True) as staging:
        staging.write_text(text, encoding="utf-8")
        staging.chmod(target.stat().st_mode & 0o777 if target.exists() else 0o644)
