"""Messages of TensorFlow Serving's API, without TensorFlow: ``messages.proto``, compiled by ``protoc``.

``tensorflow_serving.apis.*_pb2`` import all of TensorFlow (2.4 s and 400 MB). The classes here use a separate
descriptor pool, so that both can be imported, and come from a descriptor set, which every version of protobuf reads.
Each message is an attribute of this module: ``protocol.PredictRequest()``.
"""

from __future__ import annotations

from enum import StrEnum
from importlib.resources import files
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory


class Method(StrEnum):
    """Methods of ``PredictionService`` that run a model, by their gRPC paths."""

    PREDICT = "/tensorflow.serving.PredictionService/Predict"
    CLASSIFY = "/tensorflow.serving.PredictionService/Classify"
    REGRESS = "/tensorflow.serving.PredictionService/Regress"
    MULTI_INFERENCE = "/tensorflow.serving.PredictionService/MultiInference"

    def __init__(self, path: str) -> None:
        self.label = path.rpartition("/")[2]
        """The method's name without its service."""

    # Enum's own is slow, as it is written in Python, and is called several times per request.
    __hash__ = str.__hash__


GET_MODEL_METADATA = "/tensorflow.serving.PredictionService/GetModelMetadata"
GET_MODEL_STATUS = "/tensorflow.serving.ModelService/GetModelStatus"
RELOAD_CONFIG = "/tensorflow.serving.ModelService/HandleReloadConfigRequest"
HEALTH_SERVICE = "grpc.health.v1.Health"
TRAFFIC_SERVICE = "hops.serving.TrafficService"


def load_messages(folder: str) -> dict[str, Any]:
    """Returns the message classes of ``messages.binpb`` in a package's folder, by name."""
    content = files(folder).joinpath("messages.binpb").read_bytes()
    (file,) = descriptor_pb2.FileDescriptorSet.FromString(content).file
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    types = {each.name: pool.FindMessageTypeByName(f"{file.package}.{each.name}") for each in file.message_type}
    return {name: message_factory.GetMessageClass(descriptor) for name, descriptor in types.items()}


MESSAGES = load_messages(__package__)
"""Message classes by name."""


def __getattr__(name: str) -> Any:
    try:
        return MESSAGES[name]
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
