"""A user's Feast repository: a folder with ``feature_store.yaml`` and modules of definitions."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import sqlite3
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dill
import numpy as np
import pandas as pd
from feast import FeatureStore, FeatureView, OnDemandFeatureView, type_map
from feast.diff.registry_diff import FeastObjectDiff
from feast.errors import FeastError
from feast.feature_view import DUMMY_ENTITY_NAME
from feast.project import Project
from feast.repo_config import FeastConfigError, RepoConfig, load_repo_config
from feast.repo_contents import RepoContents
from feast.repo_operations import apply_total_with_repo_instance, parse_repo
from feast.transformation import udf_rehydrate
from google.protobuf.json_format import MessageToDict

from airflow_hops.core.errors import BadInput
from airflow_hops.extensions.feature_store.core.stored_features import (
    FeatureDefinitions,
    FeatureDefinitionsProperties,
    RegistryChange,
    ViewDefinition,
)
from airflow_hops.ml.step.context import StepContext, find_file

# Feast 0.67: changed in it, within this process: the loading of functions from the registry (it would run code that
# anyone who can write the registry has put there), a conversion of times, and the time zone, on which its SQLite store
# depends. keep_newer_values() changes the store itself by triggers, so that writes of older values by any process are
# ignored.

CONFIG_NAME = "feature_store.yaml"
_PATIENCE_S = 60.0
_CODE = "the registry, which others may write, holds Python code, which steps do not run"


@dataclass(frozen=True)
class ViewFeatures:
    """Some features of a view that are joined or looked up together.

    Attributes:
        view: The view.
        features: Names of the features.
        join_keys: Columns with the entity's key in the user's rows, by the view's own join key.
        prefix: Name of the view in full feature names.
    """

    view: FeatureView
    features: tuple[str, ...]
    join_keys: Mapping[str, str]
    prefix: str


@contextlib.contextmanager
def open_repository(repository: str) -> Iterator[tuple[FeatureStore, Path]]:
    """Opens the feature store of a repository, and makes its folder the working directory, as Feast's own commands do.

    Args:
        repository: The repository's folder, absolute or relative to a folder on the step's path.

    Raises:
        BadInput: there is no such repository, its configuration is invalid, its registry holds pickled code, or its
            registry or online store would be inside the DAG bundle, where each machine and version has a copy.
    """
    folder = find_file(f"{repository}/{CONFIG_NAME}", "feature repository").parent
    try:
        config = load_repo_config(folder, folder / CONFIG_NAME)
    except (FeastConfigError, FeastError, ValueError) as error:
        raise BadInput(f"{folder / CONFIG_NAME}: {error}") from error
    _check_places(config, folder / CONFIG_NAME)
    _run_no_code()
    type_map._python_datetime_to_int_timestamp = _seconds
    os.environ["TZ"] = "UTC"  # Feast 0.67: its SQLite store takes UTC times for local times
    time.tzset()
    with contextlib.chdir(folder):
        try:
            yield FeatureStore(config=config), folder
        except FeastError as error:
            raise BadInput(f"feature repository {repository!r}: {error}") from error


def _run_no_code() -> None:
    """Keeps Feast from running a registry's code when it reads the definitions there.

    On-demand views, which Feast reads with all others, get a function that raises instead; pickles are refused.
    """

    def function_of(source: str, *, preferred_name: str | None = None) -> object:
        def refused(*_: object) -> Any:
            raise BadInput(f"function {preferred_name!r}: {_CODE}")

        refused.__name__ = preferred_name or refused.__name__
        refused.__annotations__.clear()  # Feast checks them
        return refused if source.strip() else None

    def loads(*_: object, **__: object) -> Any:
        raise BadInput(
            f"{_CODE}: remove stream views with a function, functions in other languages than Python, and validation "
            "references, and compute such features before they are stored"
        )

    udf_rehydrate.rehydrate_udf_from_source = function_of
    dill.loads = loads


def _seconds(times: Sequence[object]) -> list[int]:
    """Converts times to seconds since the epoch; Feast takes each float for a null, and fails for DuckDB's texts."""

    def seconds(time: object) -> int:
        if pd.isna(time):
            return int(type_map.NULL_TIMESTAMP_INT_VALUE)
        return int(time if isinstance(time, int | float | np.number) else pd.Timestamp(time).timestamp())

    return [seconds(time) for time in times]


def _check_places(config: RepoConfig, file: Path) -> None:
    places = {"registry": (config.registry.registry_type, config.registry.path)}
    if config.online_store is not None and config.online_store.type == "sqlite":
        places["online_store.path"] = ("file", config.online_store.path)
    for field, (kind, place) in places.items():
        if kind == "file" and "://" not in place and not Path(place).is_absolute():
            raise BadInput(
                f"{file}: {field} is {place!r}, a path within the repository, and each worker and version of the DAG "
                "bundle has its own copy; expected an absolute path, a URI or a database that all workers share"
            )


def keep_newer_values(store: FeatureStore) -> None:
    """Makes an SQLite online store keep its value if the written one is older, as Redis does."""
    online_store = store.config.online_store
    if online_store is None or online_store.type != "sqlite":
        return
    tables = (
        "SELECT name FROM sqlite_master AS tables WHERE type = 'table' "
        "AND EXISTS (SELECT * FROM pragma_table_info(tables.name) WHERE name = 'event_ts')"
    )
    is_older = "new.event_ts < old.event_ts OR (new.event_ts = old.event_ts AND new.created_ts < old.created_ts)"
    with contextlib.closing(sqlite3.connect(online_store.path, timeout=_PATIENCE_S)) as connection, connection:
        for (name,) in connection.execute(tables).fetchall():
            table = name.replace('"', '""')
            connection.execute(
                f'CREATE TRIGGER IF NOT EXISTS "{table} keeps newer values" BEFORE UPDATE ON "{table}" '
                f"WHEN {is_older} BEGIN SELECT RAISE(IGNORE); END"
            )


def read_definitions(folder: Path, config: RepoConfig) -> RepoContents:
    """Imports the modules of a repository.

    Raises:
        BadInput: a module cannot be imported, or the definitions are of another project, or have a view with a function
            that is not on demand.
    """
    sys.path.insert(0, str(folder))
    try:
        contents = parse_repo(folder)
    except FeastError:
        raise
    except Exception as error:
        raise BadInput(f"feature repository {folder}: {type(error).__name__}: {error}") from error
    projects = contents.projects or [Project(name=config.project, description=config.project_description or "")]
    if names := [project.name for project in projects if project.name != config.project]:
        raise BadInput(f"{folder / CONFIG_NAME}: project is {config.project!r}, but the definitions have {names[0]!r}")
    contents.projects[:] = projects
    for view in [*contents.feature_views, *contents.stream_feature_views]:
        if getattr(view, "feature_transformation", None) or getattr(view, "udf", None):
            raise BadInput(
                f"view {view.name!r} has a function, which Feast would store as code in the registry, and no step "
                "would run; compute its features before they are stored"
            )
    return contents


def plan(store: FeatureStore, contents: RepoContents) -> list[RegistryChange]:
    """Returns the changes that applying the definitions would make in the registry."""
    registry_diff, _, _ = store.plan(contents)
    return [_change(diff) for diff in registry_diff.feast_object_diffs if _is_change(diff)]


def apply(store: FeatureStore, contents: RepoContents) -> None:
    """Makes the registry and the online store's tables those of the definitions."""
    with contextlib.redirect_stdout(sys.stderr):
        apply_total_with_repo_instance(store, store.project, store.registry, contents, skip_source_validation=False)


def _is_change(diff: FeastObjectDiff) -> bool:
    return bool(diff.name != DUMMY_ENTITY_NAME and diff.transition_type.name != "UNCHANGED")


def _change(diff: FeastObjectDiff) -> RegistryChange:
    properties = {
        each.property_name: (str(each.val_existing), str(each.val_declared))
        for each in diff.feast_object_property_diffs
    }
    return RegistryChange(diff.transition_type.name.lower(), diff.feast_object_type.value, diff.name, properties)


def definitions_of(store: FeatureStore) -> FeatureDefinitions:
    """Returns the definitions in the registry."""
    views = tuple(
        ViewDefinition(
            name=view.name,
            kind=type(view).__name__,
            join_keys=tuple(getattr(view, "join_keys", ())),
            features={field.name: str(field.dtype) for field in view.features},
            ttl_s=ttl_seconds(view),
            owner=view.owner,
            description=view.description,
            tags=dict(view.tags),
            source=_source_name(view),
            online=bool(getattr(view, "online", False)),
        )
        for view in sorted(store.list_all_feature_views(), key=lambda view: view.name)
    )
    services = {
        service.name: tuple(
            f"{projection.name_to_use()}:{feature.name}"
            for projection in service.feature_view_projections
            for feature in projection.features
        )
        for service in sorted(store.list_feature_services(), key=lambda service: service.name)
    }
    entities = [entity for entity in store.list_entities() if entity.name != DUMMY_ENTITY_NAME]
    defined = [*store.list_all_feature_views(), *store.list_feature_services(), *entities]
    canonical = sorted(json.dumps(MessageToDict(each.to_proto().spec), sort_keys=True) for each in defined)
    return FeatureDefinitions(
        project=store.project,
        entities={entity.name: entity.join_key for entity in entities},
        views=views,
        services=services,
        fingerprint=hashlib.sha256("\n".join(canonical).encode()).hexdigest(),
    )


def owned_name(config: RepoConfig) -> str:
    """Returns the name by which definitions are owned: ``<project>@<digits of the registry's address>``."""
    registry = re.sub(r"//[^/]*@", "//", config.registry.path).partition("?")[0]  # passwords change
    return f"{config.project}@{hashlib.sha256(registry.encode()).hexdigest()[:8]}"


def check_definitions(context: StepContext, store: FeatureStore) -> None:
    """Checks that the registry has the definitions of the step's input ``definitions``, if it has one.

    Raises:
        BadInput: they were changed since.
    """
    if not context.has_input("definitions"):
        return
    applied = FeatureDefinitionsProperties.of(context.input("definitions"))
    if (now := definitions_of(store).fingerprint) != applied.fingerprint:
        raise BadInput(
            f"the registry of project {store.project!r} has definitions {now[:12]}, but {applied.fingerprint[:12]} "
            "were applied in this run: other definitions were applied since; clear the task that applies these"
        )


def ttl_seconds(view: object) -> float | None:
    """Returns the age at which a view's values expire; None for never."""
    ttl = getattr(view, "ttl", None)
    return ttl.total_seconds() or None if ttl is not None else None


def key_types(view: Any) -> dict[str, str]:
    """Returns the types of a view's keys, which Feast infers from its source where an entity has none."""
    return {column.name: column.dtype.to_value_type().name for column in view.entity_columns}


def _source_name(view: object) -> str:
    source = getattr(view, "batch_source", None)
    return str(source.name) if source is not None else ""


def select(store: FeatureStore, features: Sequence[str] | str) -> list[ViewFeatures]:
    """Resolves feature references.

    Args:
        store: The feature store.
        features: References ``view:feature``, or the name of a feature service.

    Raises:
        BadInput: a view, feature or service is not in the registry, or a view computes its features at the request.
    """
    if isinstance(features, str):
        return _of_service(store, features)
    chosen: dict[str, list[str]] = {}
    for reference in features:
        name, separator, feature = reference.partition(":")
        if not separator or not feature:
            raise BadInput(f"features has {reference!r}; expected 'view:feature', or the name of a feature service")
        if feature not in chosen.setdefault(name, []):
            chosen[name].append(feature)
    views = {view.name: view for view in store.list_all_feature_views()}
    result = []
    for name, names in chosen.items():
        if name not in views:
            raise BadInput(f"features has view {name!r}; the registry has {', '.join(sorted(views)) or 'none'}")
        view = _stored(views[name])
        there = [field.name for field in view.features]
        if missing := [feature for feature in names if feature not in there]:
            raise BadInput(f"features has '{name}:{missing[0]}'; view {name!r} has {', '.join(there)}")
        result.append(ViewFeatures(view, tuple(names), {key: key for key in view.join_keys}, name))
    return result


def _of_service(store: FeatureStore, name: str) -> list[ViewFeatures]:
    services = {service.name: service for service in store.list_feature_services()}
    if name not in services:
        raise BadInput(f"features is {name!r}; expected a feature service: {', '.join(sorted(services)) or 'none'}")
    views = {view.name: view for view in store.list_all_feature_views()}
    result = []
    for projection in services[name].feature_view_projections:
        view = _stored(views[projection.name])
        keys = {key: projection.join_key_map.get(key, key) for key in view.join_keys}
        names = tuple(feature.name for feature in projection.features)
        result.append(ViewFeatures(view, names, keys, projection.name_to_use()))
    return result


def _stored(view: object) -> FeatureView:
    if isinstance(view, OnDemandFeatureView):
        raise BadInput(
            f"view {view.name!r} computes its features at the request, which neither a training set nor the model "
            "server does; compute them in the transform, from the features of its source views"
        )
    return view
