"""The look-up of a feature store's features, as a part of the model server and of deployments."""

from __future__ import annotations

import argparse
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import grpc

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.artifacts.properties import ModelProperties
from airflow_hops.core.errors import BadInput
from airflow_hops.extensions.feature_store.core.stored_features import OnlineFeatures, StoredFeatures
from airflow_hops.extensions.feature_store.serving.feature_server import KEY_TENSORS, FeatureServer, LookupLimit
from airflow_hops.serving.errors import ServingError, invalid_argument
from airflow_hops.serving.flags import Flags, flag
from airflow_hops.serving.models.lookups import Lookup, OpenLookup, RequestKeys
from airflow_hops.serving.models.servable import Servable

_OPTIONS = {"defaults", "max_age_s", "timeout_s", "default_if_down"}


def _address(text: str) -> str:
    if not re.fullmatch(r"([^:/\s]+|\[[^/\s]+\]):\d+", text, re.ASCII):
        raise argparse.ArgumentTypeError(
            f"value is {text!r}; expected host:port of 'feast listen', which reads the online store"
        )
    return text


@dataclass(frozen=True)
class FeatureFlags:
    """Feature store."""

    feature_server: str = flag(
        "", "host:port of Feast's gRPC feature server (feast listen), from which models get features", _address
    )


class FeatureLookup(Lookup):
    """Looks features up at a feature server; its description is an :class:`OnlineFeatures`."""

    flags = FeatureFlags

    def check(self, flags: Flags) -> str:
        """Returns why the flags cannot go together."""
        if flags.of(FeatureFlags).feature_server and flags.models_flag:
            return f"--feature_server is set with --{flags.models_flag}; the servers behind this one look features up"
        return ""

    def describe(self, data: Artifact, model: Artifact, options: Mapping[str, Any]) -> dict[str, Any] | None:
        """Describes the features of a model that are looked up.

        Args:
            data: Examples of the training_dataset stage.
            model: The model.
            options: Fields of :class:`OnlineFeatures`.

        Raises:
            BadInput: the model takes none of the features, or an option is unknown or of a wrong value.
        """
        if "stored_features" not in data.properties:
            return None
        if unknown := sorted(options.keys() - _OPTIONS):
            raise BadInput(f"lookup_options has {unknown[0]!r}; expected {', '.join(sorted(_OPTIONS))}")
        stored = StoredFeatures.from_dict(data.properties["stored_features"])
        inputs = ModelProperties.of(model).inputs
        columns = {name: origin for name, origin in stored.columns.items() if inputs is None or name in inputs}
        if not columns:
            raise BadInput(f"the model takes {', '.join(inputs or ())}; lookup has {', '.join(stored.columns)}")
        for origin in columns.values():
            for key, kind in origin.key_types.items():
                if kind not in KEY_TENSORS:
                    raise BadInput(f"join key {key!r} is a {kind}; expected one of {', '.join(KEY_TENSORS)}")
        if unknown := sorted(options.get("defaults", {}).keys() - columns.keys()):
            raise BadInput(f"lookup_options: defaults has {unknown[0]!r}; the model takes {', '.join(columns)}")
        for name, value in options.get("defaults", {}).items():
            dtype = columns[name].dtype
            if value is None or isinstance(value, str) != (dtype == "String"):
                raise BadInput(f"lookup_options: the default of {name!r} is {value!r}; expected a {dtype}")
        for name in ("max_age_s", "timeout_s"):
            if (seconds := options.get(name, 1)) is not None and not seconds > 0:
                raise BadInput(f"lookup_options: {name} is {seconds!r}; expected seconds, more than 0")
        return OnlineFeatures(stored.project, columns, **options).to_dict()

    def request_keys(self, description: Mapping[str, object]) -> RequestKeys:
        """Returns the keys of entities, which requests hold instead of features."""
        features = OnlineFeatures.from_dict(description)
        return RequestKeys(
            frozenset(features.columns), {name: KEY_TENSORS[kind].name for name, kind in features.key_types.items()}
        )

    def opener(self, flags: Flags) -> OpenLookup:
        """Returns the function that opens versions; look-ups take half of the threads at most."""
        from airflow_hops.extensions.feature_store.serving.feature_lookup import LookupServable

        address = flags.of(FeatureFlags).feature_server
        threads = min(flags.request_threads, flags.rest_api_num_threads or flags.request_threads)
        limit, project, opening = LookupLimit(max(1, threads // 2)), "", threading.Lock()

        def open_version(servable: Servable, description: Mapping[str, object]) -> Servable:
            nonlocal project
            if not address:
                raise ServingError(
                    grpc.StatusCode.FAILED_PRECONDITION,
                    "the model's features are in a feature store; start the server with --feature_server",
                )
            try:
                features = OnlineFeatures.from_dict(description)
            except TypeError as error:
                raise invalid_argument(str(error)) from error
            with opening:  # of two projects at once, one is refused
                if project not in ("", features.project):  # whose views may have the same names
                    raise ServingError(
                        grpc.StatusCode.FAILED_PRECONDITION,
                        f"its features are of Feast's project {features.project!r}, and those of another version of "
                        f"{project!r}; a feature server serves one project: start a model server for each",
                    )
                result = LookupServable(servable, features, FeatureServer(address, features.timeout_s), limit)
                project = features.project
            return result

        return open_version
