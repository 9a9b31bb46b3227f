"""The file of the model config: read when it has changed, and written when a config came by RPC."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import grpc

from airflow_hops.core.serving_api.config import ConfigError, change_config, parse_config
from airflow_hops.serving.errors import ServingError

log = logging.getLogger(__name__)


class ConfigFile:
    """A file with a ``ModelServerConfig``, or none.

    Args:
        path: Where it is; None or empty if the config is of the command line.
        write_back: Whether :meth:`write` does so.
    """

    def __init__(self, path: str | os.PathLike[str] | None, write_back: bool) -> None:
        self._path = Path(path) if path else None
        self._write_back = write_back
        self._content = self._path.read_bytes() if self._path else b""

    def __str__(self) -> str:
        return str(self._path or "command line")

    def changed(self) -> Any:
        """The ``ModelServerConfig`` where it is another than before; None if it is the same, or cannot be taken."""
        if self._path is None:
            return None
        try:
            content = self._path.read_bytes()
            if content == self._content:
                return None
            self._content = content
            config = parse_config(content.decode("utf-8"), str(self))
        except (ConfigError, OSError, UnicodeDecodeError) as error:
            log.error("model config file ignored, the models stay as they were: %s", error)
            return None
        log.info("model config file %s changed: applied", self)
        return config

    def write(self, in_effect: Any) -> None:
        """Writes the config in effect, where that was asked for, so that a restart has it.

        Raises:
            ServingError: The file cannot be written.
        """
        if self._path is None or not self._write_back:
            return
        try:
            change_config(self._path, lambda config: config.CopyFrom(in_effect))
            self._content = self._path.read_bytes()
        except (ConfigError, OSError) as error:
            raise ServingError(
                grpc.StatusCode.INTERNAL, f"The config is in effect, but cannot be written to its file: {error}"
            ) from error
