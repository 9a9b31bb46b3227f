"""Look-ups: inputs of a model that the server fills from elsewhere, so that requests hold keys instead.

A look-up is a part of the server that deployments consult. A deployment writes the look-up's description into the
version's folder (``lookup.json``); the server that loads the version hands the description back to it.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.errors import BadInput
from airflow_hops.core.json_fields import JsonFields
from airflow_hops.serving.errors import ServingError, invalid_argument
from airflow_hops.serving.flags import Flags
from airflow_hops.serving.models.servable import Servable
from airflow_hops.serving.parts import ServerPart, server_parts

LOOKUP_NAME = "lookup.json"
"""File of a served version: :class:`LookupFile`."""

OpenLookup = Callable[[Servable, Mapping[str, Any]], Servable]
"""Returns a version that fills inputs by a description, and asks the given version; raises ServingError."""


def refuse_lookup(folder: Path, service: str) -> None:
    """Raises BadInput if the model in a folder needs a look-up of features, which a service does not run."""
    if (folder / LOOKUP_NAME).exists():
        raise BadInput(
            f"{folder / LOOKUP_NAME}: the model needs a look-up of features, which {service} does not run; join them "
            "in prepare and deploy it without a lookup, or serve it with 'airflow hops serve' (kind 'bundled')"
        )


@dataclass(frozen=True)
class LookupFile(JsonFields):
    """Names the look-up of a version, and describes it.

    Attributes:
        lookup: Name under which the look-up is registered.
        description: JSON object of the look-up, as its ``describe`` returned it.
    """

    lookup: str
    description: Mapping[str, Any]


@dataclass(frozen=True)
class RequestKeys:
    """The difference between the inputs of a model and those of its requests.

    Attributes:
        filled: Inputs that the server fills.
        keys: TensorFlow's name of the type, by input that requests hold for them.
    """

    filled: frozenset[str] = frozenset()
    keys: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return ", ".join(f"{name!r} ({dtype})" for name, dtype in sorted(self.keys.items())) or "no key"


class Lookup(ServerPart, ABC):
    """A look-up."""

    @abstractmethod
    def describe(self, data: Artifact, model: Artifact, options: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Describes the looked-up inputs of a model, in a deployment.

        Args:
            data: Argument ``lookup`` of ``DeployModelOperator``.
            model: The model.
            options: Argument ``lookup_options``.

        Returns:
            A JSON object; None if the data are of another look-up.

        Raises:
            BadInput: The model takes none of the data, or an option is not known or of a wrong value.
        """

    @abstractmethod
    def request_keys(self, description: Mapping[str, Any]) -> RequestKeys:
        """Returns the difference between the model's inputs and those of requests.

        Raises:
            KeyError, ValueError, TypeError: The description is damaged.
        """

    @abstractmethod
    def opener(self, flags: Flags) -> OpenLookup:
        """Returns the function that opens versions, of one process and all its models."""


def lookups() -> dict[str, Lookup]:
    """Returns the registered look-ups by name."""
    return {name: part for name, part in server_parts().items() if isinstance(part, Lookup)}


def with_lookup(servable: Servable, folder: Path, openers: Mapping[str, OpenLookup]) -> Servable:
    """Returns a version with its look-up if its folder has one, else the version itself.

    Raises:
        ServingError: The file is damaged, its look-up is not registered, or cannot be used.
    """
    path = folder / LOOKUP_NAME
    if not path.is_file():
        return servable
    try:
        file = LookupFile.from_dict(json.loads(path.read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise invalid_argument(f"{path}: {error}") from error
    if file.lookup not in openers:
        known = ", ".join(sorted(openers)) or "none"
        message = f"{path}: no installed distribution registers the look-up {file.lookup!r}; there is {known}"
        raise ServingError(grpc.StatusCode.FAILED_PRECONDITION, message)
    try:
        return openers[file.lookup](servable, file.description)
    except ServingError as error:
        raise ServingError(error.code, f"{path}: {error.message}") from error
