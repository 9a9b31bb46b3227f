"""Definitions of a feature store, and the features of a training set, for both sides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_hops.core.artifacts.properties import Properties, Window
from airflow_hops.core.json_fields import JsonFields, omit_if_none

DEFINITIONS_NAME = "definitions.json"
"""File of a ``feature_definitions`` artifact: :class:`FeatureDefinitions`."""

OWNED = "features"
"""Kind of the names of owned definitions, for :mod:`airflow_hops.core.store.owners`."""

PLAN_NAME = "plan.json"
"""File of a ``feature_definitions`` artifact: each :class:`RegistryChange`, as planned before they were applied."""


@dataclass(frozen=True)
class RegistryChange(JsonFields):
    """A planned change of the registry.

    Attributes:
        action: ``create``, ``update`` or ``delete``.
        kind: Kind of the changed object: ``entity``, ``feature view``, ``data source`` and so on.
        name: Its name.
        properties: Old and new value of the properties that change.
    """

    action: str
    kind: str
    name: str
    properties: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __str__(self) -> str:
        changed = "; ".join(f"{name}: {' -> '.join(values)}" for name, values in self.properties.items())
        return f"{self.action} {self.kind} {self.name}{f' ({changed})' if changed else ''}"


@dataclass(frozen=True)
class ViewDefinition(JsonFields):
    """A feature view.

    Attributes:
        name: Its name.
        kind: Feast's class.
        join_keys: Columns of the entities' keys.
        features: Types by feature.
        ttl_s: Age in seconds at which a value expires; None for never.
        owner: Its owner, usually an email address.
        description: Description for readers.
        tags: The user's tags.
        source: Name of its batch source.
        online: Whether its values are looked up at requests.
    """

    name: str
    kind: str
    join_keys: tuple[str, ...] = ()
    features: Mapping[str, str] = field(default_factory=dict)
    ttl_s: float | None = None
    owner: str = ""
    description: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)
    source: str = ""
    online: bool = False


@dataclass(frozen=True)
class FeatureDefinitions(JsonFields):
    """All definitions of a project.

    Attributes:
        project: Feast's project.
        entities: Join key by entity.
        views: The feature views, by name.
        services: References ``view:feature`` by feature service.
        fingerprint: SHA-256 of the definitions, in hex.
    """

    project: str
    entities: Mapping[str, str] = field(default_factory=dict)
    views: tuple[ViewDefinition, ...] = ()
    services: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    fingerprint: str = ""


@dataclass(frozen=True)
class FeatureDefinitionsProperties(Properties):
    """Properties of ``feature_definitions``.

    Attributes:
        owned_name: Name by which the definitions are owned.
        changes: Number of changes that were applied.
    """

    project: str = ""
    owned_name: str = ""
    fingerprint: str = ""
    changes: int = 0
    views: tuple[str, ...] = ()


@dataclass(frozen=True)
class MaterializationProperties(Properties):
    """Properties of a ``materialization``.

    Attributes:
        window: The loaded window.
        views: Result of each view.
    """

    window: Window | None = None
    views: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class PushProperties(Properties):
    """Properties of a ``feature_push``: the push source, its views, and the stores that got the rows."""

    push_source: str = ""
    to: str = ""
    views: tuple[str, ...] = ()


@dataclass(frozen=True)
class StoredFeature(JsonFields):
    """Origin of a column that was joined from the feature store.

    Attributes:
        view: The feature view.
        feature: The feature in it.
        dtype: Feast's type.
        keys: Columns with the entity's key, by the view's join key.
        key_types: Feast's types of the keys, by the view's join key.
        ttl_s: Age in seconds at which the value expires; None for never.
    """

    view: str
    feature: str
    dtype: str
    keys: Mapping[str, str] = field(default_factory=dict)
    key_types: Mapping[str, str] = field(default_factory=dict)
    ttl_s: float | None = None


@dataclass(frozen=True)
class StoredFeatures(JsonFields):
    """Property ``stored_features`` of ``examples``: columns that were joined from a feature store.

    Attributes:
        project: Feast's project.
        fingerprint: That of the definitions.
        columns: Origin by column.
        without_created: Views whose source has no created timestamp, so that values that arrived late are in them.
    """

    project: str
    fingerprint: str
    columns: Mapping[str, StoredFeature] = field(default_factory=dict)
    without_created: tuple[str, ...] | None = omit_if_none()


@dataclass(frozen=True)
class OnlineFeatures(JsonFields):
    """The inputs of a served model that are looked up in an online store.

    Attributes:
        project: Feast's project.
        columns: Origin by input.
        defaults: Values for entities without one, by input; without a default, floats are NaN, and strings empty.
        max_age_s: Age in seconds up to which values are used; None for the view's time to live.
        timeout_s: Time for the feature server's answer.
        default_if_down: Whether defaults are used if the feature server does not answer; otherwise the request fails.
    """

    project: str
    columns: Mapping[str, StoredFeature] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    max_age_s: float | None = None
    timeout_s: float = 0.5
    default_if_down: bool = False

    @property
    def key_types(self) -> dict[str, str]:
        """Returns Feast's types of the keys that requests hold, by input."""
        return {name: origin.key_types[key] for origin in self.columns.values() for key, name in origin.keys.items()}


def value_time_input(column: str) -> str:
    """Returns the captured input with the time of a looked-up value, in seconds since the epoch; 0 if there is none."""
    return f"{column}__value_time"
