"""Inputs of a model's requests by name, type and shape, to check whether one model accepts the requests of another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from google.protobuf.message import DecodeError

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.artifacts.properties import ModelProperties
from airflow_hops.core.errors import BadInput
from airflow_hops.core.models.model_record import ServedVersion
from airflow_hops.core.serving_api import tensors
from airflow_hops.core.serving_api.protocol import SavedModel
from airflow_hops.ml.features.transform_graph import SIGNATURE
from airflow_hops.ml.models.loaded_models import model_folder
from airflow_hops.ml.step.context import StepContext
from airflow_hops.serving.models.lookups import RequestKeys
from airflow_hops.serving.models.model_signature import SIGNATURE_FILE, SignatureFileError, read_inputs

_SAVED_MODEL = "saved_model.pb"
NO_KEYS = RequestKeys()
"""Requests hold all inputs."""


@dataclass(frozen=True)
class RequestInput:
    """An input of a signature.

    Attributes:
        dtype: Type, as TensorFlow names it.
        shape: Shape, with -1 for a dimension of any size; None for any shape.
        is_described: Whether the server arranges the columns itself, and so accepts ``[batch, 1]`` for ``[batch]``.
    """

    dtype: str
    shape: tuple[int, ...] | None
    is_described: bool = False

    def takes(self, other: RequestInput) -> bool:
        """Returns whether it accepts every value of another input."""
        if self.dtype != other.dtype:
            return False
        if self.shape is None or other.shape is None:
            return True
        shape = other.shape[:1] if self.is_described and other.shape == (-1, 1) else other.shape
        same = (mine in (-1, size) for mine, size in zip(self.shape, shape, strict=False))
        return len(self.shape) == len(shape) and all(same)

    def __str__(self) -> str:
        sizes = "of any shape" if self.shape is None else f"[{', '.join('?' if d < 0 else str(d) for d in self.shape)}]"
        return f"{self.dtype} {sizes}"


def request_inputs(folder: Path) -> dict[str, RequestInput] | None:
    """Reads the inputs of a model's signature ``serving_default`` without loading it; None if they cannot be read."""
    try:
        if (folder / SIGNATURE_FILE).is_file():
            specs = read_inputs(folder).specs()
            return {name: RequestInput(kind.name, shape, True) for name, kind, shape in specs}
        if not (folder / _SAVED_MODEL).is_file():
            return None
        (graph, *_) = SavedModel.FromString((folder / _SAVED_MODEL).read_bytes()).meta_graphs
        infos = graph.signature_def[SIGNATURE].inputs
        results = {
            name: RequestInput(tensors.BY_NUMBER[info.dtype].name, tensors.shape_of(info))
            for name, info in infos.items()
        }
        return results or None
    except (SignatureFileError, ValueError, KeyError, OSError, DecodeError):
        return None  # loading it reports the error


def other_types(champion: Mapping[str, RequestInput] | None, model: Mapping[str, RequestInput] | None) -> list[str]:
    """Describes the inputs of a model that do not accept all values of the champion's inputs of the same names."""
    return [
        f"takes {name!r} as {mine} and not {theirs}"
        for name, theirs in sorted((champion or {}).items(), key=lambda item: item[0])
        if (mine := (model or {}).get(name)) is not None and not mine.takes(theirs)
    ]


def check_inputs(
    context: StepContext,
    champion: ServedVersion,
    model: Artifact,
    model_name: str,
    champion_keys: RequestKeys = NO_KEYS,
    keys: RequestKeys = NO_KEYS,
) -> None:
    """Checks that a canary accepts the champion's requests, which it gets a share of.

    With a look-up, requests hold keys instead of the looked-up inputs.

    Args:
        context: Step.
        champion: The champion.
        model: The canary's model.
        model_name: Name of the served model.
        champion_keys: Differences between the champion's inputs and those of its requests.
        keys: Differences between the canary's inputs and those of its requests.

    Raises:
        BadInput: inputs or keys differ in name, type or width.
    """
    champion_types = _sent_types(_champion_inputs(context, champion), champion_keys)
    types = _sent_types(request_inputs(model_folder(context.store, model)), keys)
    old, new = _sent(champion.model, champion_keys), _sent(model, keys)
    if champion_keys.filled or keys.filled:
        # A model whose artifact does not list its inputs
        old, new = old or set(champion_types or ()), new or set(types or ())
    differences = []
    if old is not None and new is not None:
        for verb, names in (("does not take", old - new), ("also needs", new - old)):
            differences += [f"{verb} {', '.join(map(repr, sorted(names)))}"] if names else []
    differences += other_types(champion_types, types)
    if differences:
        advice = (
            "Name what it does not use in TransformOperator's extra_inputs, and cast columns in prepare() to the types "
            "that they had"
        )
        if keys.keys != champion_keys.keys:
            advice = (
                f"The server looks inputs up by {champion_keys} for the champion, and by {keys} for the canary: give "
                "DeployModelOperator a lookup with the champion's keys, and name a key that is not needed any more in "
                "TransformOperator's extra_inputs"
            )
        raise BadInput(
            f"model {model_name!r}: {model.uri} {' and '.join(differences)}, unlike the champion {champion.model.uri}. "
            "A canary gets the requests that the champion gets, and a server refuses requests with other inputs. "
            f"{advice}; or switch clients and model together, with canary_percent=100 or another model_name"
        )


def _sent(model: Artifact, keys: RequestKeys) -> set[str] | None:
    """Returns the inputs that clients send; None if the model's artifact does not list them."""
    names = _names(model)
    return None if names is None else names - keys.filled | keys.keys.keys()


def _sent_types(types: Mapping[str, RequestInput] | None, keys: RequestKeys) -> Mapping[str, RequestInput] | None:
    """Returns the types of the inputs that clients send; None if the model's inputs are not known."""
    if types is None:
        return None
    of_keys = {name: RequestInput(dtype, (-1,), is_described=True) for name, dtype in keys.keys.items()}
    return of_keys | {name: each for name, each in types.items() if name not in keys.filled}


def _champion_inputs(context: StepContext, champion: ServedVersion) -> dict[str, RequestInput] | None:
    """Reads the inputs from the served folder if the artifact was replaced or removed."""
    try:
        return request_inputs(model_folder(context.store, champion.model))
    except BadInput:
        return request_inputs(Path(champion.serving_path)) if champion.serving_path else None


def _names(model: Artifact) -> set[str] | None:
    """Returns the inputs of a model's requests; None if its artifact does not list them."""
    properties = ModelProperties.of(model)
    if properties.inputs is not None:
        return set(properties.inputs)
    # Models without 'inputs' are older, and take every raw feature and the time.
    return None if properties.features is None else {*properties.features, *filter(None, [properties.time])}
