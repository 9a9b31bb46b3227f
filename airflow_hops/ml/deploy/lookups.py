"""Look-ups in deployments: their description in a version's folder, and the checks of it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.errors import BadInput
from airflow_hops.ml.features.transform_graph import SIGNATURE
from airflow_hops.ml.model_server import ModelServer
from airflow_hops.ml.model_server.request_inputs import NO_KEYS
from airflow_hops.ml.step.context import StepContext
from airflow_hops.serving.models.lookups import LOOKUP_NAME, LookupFile, RequestKeys, lookups


def lookup_of(context: StepContext, model: Artifact, options: Mapping[str, object]) -> LookupFile | None:
    """Returns the look-up of a model to deploy; None if the step has no input ``lookup``.

    Raises:
        BadInput: no registered look-up takes the input, or it refuses the model or an option.
    """
    if not context.has_input("lookup"):
        if options:
            raise BadInput(f"lookup_options has {', '.join(options)}, but there is no lookup")
        return None
    data, known = context.input("lookup"), lookups()
    for name, lookup in known.items():
        description = lookup.describe(data, model, options)
        if description is not None:
            return LookupFile(name, description)
    raise BadInput(
        f"lookup {data.uri} is an artifact of kind {data.kind!r} that no look-up takes; registered look-ups: "
        f"{', '.join(sorted(known)) or 'none'}"
    )


def with_lookup_file(context: StepContext, folder: Path, file: LookupFile) -> Path:
    """Returns a copy of a model's folder with ``lookup.json``."""
    copy = context.scratch / "with_lookup"
    if not copy.exists():
        shutil.copytree(folder, copy)
        (copy / LOOKUP_NAME).write_text(json.dumps(file.to_dict(), indent=1) + "\n")
    return copy


def published_lookup(server: ModelServer, model_name: str, version: int) -> LookupFile | None:
    """Returns the look-up of a published version; None if nothing.

    Raises:
        BadInput: the version's file is damaged.
    """
    content = server.folders.read(model_name, version, LOOKUP_NAME)
    try:
        return None if content is None else LookupFile.from_dict(json.loads(content))
    except (ValueError, TypeError) as error:
        raise BadInput(f"{server.folders.uri(model_name, version)}/{LOOKUP_NAME}: {error}") from error


def keys_of(file: LookupFile | None) -> RequestKeys:
    """Returns the keys that requests hold instead of the looked-up inputs.

    Raises:
        BadInput: the look-up is not registered, or its description is damaged.
    """
    if file is None:
        return NO_KEYS
    known = lookups()
    if file.lookup not in known:
        raise BadInput(
            f"look-up {file.lookup!r} is not registered; registered are {', '.join(sorted(known)) or 'none'}"
        )
    try:
        return known[file.lookup].request_keys(file.description)
    except (KeyError, ValueError, TypeError) as error:
        raise BadInput(f"the description of look-up {file.lookup!r} is damaged: {error}") from error


def check_published(server: ModelServer, model_name: str, version: int, file: LookupFile | None) -> None:
    """Checks that a version that was published before has the same look-up.

    Raises:
        BadInput: the server does not look them up; the version's folder stays, since the server may have loaded it.
    """
    published = published_lookup(server, model_name, version)
    old, new = ({} if each is None else {"lookup": each.lookup, **each.description} for each in (published, file))
    # As JSON, in which tuples and lists are equal
    old, new = json.loads(json.dumps(old)), json.loads(json.dumps(new))
    if differing := sorted(name for name in old | new if old.get(name) != new.get(name)):
        raise BadInput(
            f"model {model_name!r}: version {version} was published with another lookup: {', '.join(differing)} in "
            f"{server.folders.uri(model_name, version)}/{LOOKUP_NAME} would change; a published version does not "
            "change: pass the same lookup and lookup_options, or train a new model"
        )


def check_looked_up(server: ModelServer, model_name: str, version: int, keys: RequestKeys) -> None:
    """Checks that the server that loaded a version looks its inputs up: other programs ignore the description.

    Raises:
        BadInput: clients would have to send the inputs.
    """
    with server.at.client() as client:
        signatures = client.metadata(model_name, version=version).signatures
    inputs = signatures[SIGNATURE].inputs if SIGNATURE in signatures else {}
    if sent := sorted(inputs.keys() & keys.filled):
        raise BadInput(
            f"model {model_name!r}: {server.at}, or the server behind it, does not look up {sent[0]!r}: it is not "
            "'airflow hops serve' (TensorFlow Serving has no look-ups). Serve the model with that, or deploy it "
            "without a lookup and have clients send its inputs"
        )
