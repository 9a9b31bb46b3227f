"""The messages of TensorFlow Serving's protocol, declared without importing TensorFlow.

``tensorflow_serving.apis.*_pb2`` import ``tensorflow.core``, and with it all of TensorFlow (2.4 s and 400 MB), which is
too much for a step that only wants to ask a server a question. The few messages that a client needs are declared here
in a descriptor pool of their own, field by field as in TensorFlow Serving's ``.proto`` files; a test compares them with
the originals.
The gRPC health protocol (``grpc.health.v1``) is here too: its package is not in the runtime environment.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory


class Method(StrEnum):
    """The methods of ``PredictionService`` that run a model, by their gRPC paths."""

    PREDICT = "/tensorflow.serving.PredictionService/Predict"
    CLASSIFY = "/tensorflow.serving.PredictionService/Classify"
    REGRESS = "/tensorflow.serving.PredictionService/Regress"
    MULTI_INFERENCE = "/tensorflow.serving.PredictionService/MultiInference"

    def __init__(self, path: str) -> None:
        self.label = path.rpartition("/")[2]
        """The method's name alone."""

    # An enumeration's own is written in Python, and every request asks for it several times.
    __hash__ = str.__hash__


GET_MODEL_METADATA = "/tensorflow.serving.PredictionService/GetModelMetadata"
GET_MODEL_STATUS = "/tensorflow.serving.ModelService/GetModelStatus"
RELOAD_CONFIG = "/tensorflow.serving.ModelService/HandleReloadConfigRequest"
HEALTH_SERVICE = "grpc.health.v1.Health"
PROFILER_SERVICE = "tensorflow.ProfilerService"
TRAFFIC_SERVICE = "hops.serving.TrafficService"

_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    "bool": _Field.TYPE_BOOL,
    "bytes": _Field.TYPE_BYTES,
    "double": _Field.TYPE_DOUBLE,
    "float": _Field.TYPE_FLOAT,
    "int32": _Field.TYPE_INT32,
    "int64": _Field.TYPE_INT64,
    "string": _Field.TYPE_STRING,
    "uint32": _Field.TYPE_UINT32,
    "uint64": _Field.TYPE_UINT64,
}

_ENUMS: dict[str, dict[str, int]] = {
    "DataType": {
        name: number
        for number, name in enumerate(
            [
                "DT_INVALID",
                "DT_FLOAT",
                "DT_DOUBLE",
                "DT_INT32",
                "DT_UINT8",
                "DT_INT16",
                "DT_INT8",
                "DT_STRING",
                "DT_COMPLEX64",
                "DT_INT64",
                "DT_BOOL",
                "DT_QINT8",
                "DT_QUINT8",
                "DT_QINT32",
                "DT_BFLOAT16",
                "DT_QINT16",
                "DT_QUINT16",
                "DT_UINT16",
                "DT_COMPLEX128",
                "DT_HALF",
                "DT_RESOURCE",
                "DT_VARIANT",
                "DT_UINT32",
                "DT_UINT64",
                "DT_FLOAT8_E5M2",
                "DT_FLOAT8_E4M3FN",
            ]
        )
    },
    "Code": {
        name: number
        for number, name in enumerate(
            [
                "OK",
                "CANCELLED",
                "UNKNOWN",
                "INVALID_ARGUMENT",
                "DEADLINE_EXCEEDED",
                "NOT_FOUND",
                "ALREADY_EXISTS",
                "PERMISSION_DENIED",
                "RESOURCE_EXHAUSTED",
                "FAILED_PRECONDITION",
                "ABORTED",
                "OUT_OF_RANGE",
                "UNIMPLEMENTED",
                "INTERNAL",
                "UNAVAILABLE",
                "DATA_LOSS",
                "UNAUTHENTICATED",
            ]
        )
    },
    "State": {"UNKNOWN": 0, "START": 10, "LOADING": 20, "AVAILABLE": 30, "UNLOADING": 40, "END": 50},
    "ModelType": {"MODEL_TYPE_UNSPECIFIED": 0, "TENSORFLOW": 1, "OTHER": 2},
}

# message -> {field: (number, type)}; "repeated T", "map T" (string to T) and "oneof:NAME T" are what
# they say.
_MESSAGES: dict[str, dict[str, tuple[int, str]]] = {
    "Dim": {"size": (1, "int64"), "name": (2, "string")},
    "TensorShapeProto": {"dim": (2, "repeated Dim"), "unknown_rank": (3, "bool")},
    "TensorProto": {
        "dtype": (1, "DataType"),
        "tensor_shape": (2, "TensorShapeProto"),
        "version_number": (3, "int32"),
        "tensor_content": (4, "bytes"),
        "float_val": (5, "repeated float"),
        "double_val": (6, "repeated double"),
        "int_val": (7, "repeated int32"),
        "string_val": (8, "repeated bytes"),
        "scomplex_val": (9, "repeated float"),
        "int64_val": (10, "repeated int64"),
        "bool_val": (11, "repeated bool"),
        "dcomplex_val": (12, "repeated double"),
        "half_val": (13, "repeated int32"),
        "uint32_val": (16, "repeated uint32"),
        "uint64_val": (17, "repeated uint64"),
    },
    "TensorInfo": {"name": (1, "string"), "dtype": (2, "DataType"), "tensor_shape": (3, "TensorShapeProto")},
    "SignatureDef": {
        "inputs": (1, "map TensorInfo"),
        "outputs": (2, "map TensorInfo"),
        "method_name": (3, "string"),
        "defaults": (4, "map TensorProto"),
    },
    "SignatureDefMap": {"signature_def": (1, "map SignatureDef")},
    "MetaGraphDef": {"signature_def": (5, "map SignatureDef")},
    "SavedModel": {"meta_graphs": (2, "repeated MetaGraphDef")},
    "Int64Value": {"value": (1, "int64")},
    "BoolValue": {"value": (1, "bool")},
    "StringValue": {"value": (1, "string")},
    "Any": {"type_url": (1, "string"), "value": (2, "bytes")},
    "ModelSpec": {
        "name": (1, "string"),
        "version": (2, "oneof:version_choice Int64Value"),
        "signature_name": (3, "string"),
        "version_label": (4, "oneof:version_choice string"),
    },
    "BytesList": {"value": (1, "repeated bytes")},
    "FloatList": {"value": (1, "repeated float")},
    "Int64List": {"value": (1, "repeated int64")},
    "Feature": {
        "bytes_list": (1, "oneof:kind BytesList"),
        "float_list": (2, "oneof:kind FloatList"),
        "int64_list": (3, "oneof:kind Int64List"),
    },
    "Features": {"feature": (1, "map Feature")},
    "Example": {"features": (1, "Features")},
    "ExampleList": {"examples": (1, "repeated Example")},
    "ExampleListWithContext": {"examples": (1, "repeated Example"), "context": (2, "Example")},
    "Input": {
        "example_list": (1, "oneof:kind ExampleList"),
        "example_list_with_context": (2, "oneof:kind ExampleListWithContext"),
    },
    # The same on the wire, with every example left serialized, as the model's graph parses it.
    "SerializedExampleList": {"examples": (1, "repeated bytes")},
    "SerializedExampleListWithContext": {"examples": (1, "repeated bytes"), "context": (2, "bytes")},
    "SerializedInput": {
        "example_list": (1, "oneof:kind SerializedExampleList"),
        "example_list_with_context": (2, "oneof:kind SerializedExampleListWithContext"),
    },
    "SerializedInferenceRequest": {"model_spec": (1, "ModelSpec"), "input": (2, "SerializedInput")},
    "SerializedMultiInferenceRequest": {"tasks": (1, "repeated InferenceTask"), "input": (2, "SerializedInput")},
    "RequestHead": {"model_spec": (1, "ModelSpec")},
    "TensorShape": {"tensor_shape": (2, "TensorShapeProto")},
    "PredictShapes": {"inputs": (2, "map TensorShape")},
    "ResponseSpec": {"model_spec": (2, "ModelSpec")},
    "MultiInferenceHead": {"tasks": (1, "repeated RequestHead")},
    "ClassificationRequest": {"model_spec": (1, "ModelSpec"), "input": (2, "Input")},
    "Class": {"label": (1, "string"), "score": (2, "float")},
    "Classifications": {"classes": (1, "repeated Class")},
    "ClassificationResult": {"classifications": (1, "repeated Classifications")},
    "ClassificationResponse": {"result": (1, "ClassificationResult"), "model_spec": (2, "ModelSpec")},
    "RegressionRequest": {"model_spec": (1, "ModelSpec"), "input": (2, "Input")},
    "Regression": {"value": (1, "float")},
    "RegressionResult": {"regressions": (1, "repeated Regression")},
    "RegressionResponse": {"result": (1, "RegressionResult"), "model_spec": (2, "ModelSpec")},
    "InferenceTask": {"model_spec": (1, "ModelSpec"), "method_name": (2, "string")},
    "InferenceResult": {
        "model_spec": (1, "ModelSpec"),
        "classification_result": (2, "oneof:result ClassificationResult"),
        "regression_result": (3, "oneof:result RegressionResult"),
    },
    "MultiInferenceRequest": {"tasks": (1, "repeated InferenceTask"), "input": (2, "Input")},
    "MultiInferenceResponse": {"results": (1, "repeated InferenceResult")},
    "PredictRequest": {
        "model_spec": (1, "ModelSpec"),
        "inputs": (2, "map TensorProto"),
        "output_filter": (3, "repeated string"),
    },
    "PredictResponse": {"outputs": (1, "map TensorProto"), "model_spec": (2, "ModelSpec")},
    "GetModelMetadataRequest": {"model_spec": (1, "ModelSpec"), "metadata_field": (2, "repeated string")},
    "GetModelMetadataResponse": {"model_spec": (1, "ModelSpec"), "metadata": (2, "map Any")},
    "GetModelStatusRequest": {"model_spec": (1, "ModelSpec")},
    "StatusProto": {"error_code": (1, "Code"), "error_message": (2, "string")},
    "ModelVersionStatus": {"version": (1, "int64"), "state": (2, "State"), "status": (3, "StatusProto")},
    "GetModelStatusResponse": {"model_version_status": (1, "repeated ModelVersionStatus")},
    "Latest": {"num_versions": (1, "uint32")},
    "All": {},
    "Specific": {"versions": (1, "repeated int64")},
    "ServableVersionPolicy": {
        "latest": (100, "oneof:policy_choice Latest"),
        "all": (101, "oneof:policy_choice All"),
        "specific": (102, "oneof:policy_choice Specific"),
    },
    "LogCollectorConfig": {"type": (1, "string"), "filename_prefix": (2, "string")},
    "SamplingConfig": {"sampling_rate": (1, "double"), "attributes": (2, "int32")},
    "LoggingConfig": {
        "log_collector_config": (1, "LogCollectorConfig"),
        "sampling_config": (2, "SamplingConfig"),
    },
    # Read as text alone, where fields go by their names: the numbers of the last two are ours.
    "BatchingParameters": {
        "max_batch_size": (1, "Int64Value"),
        "batch_timeout_micros": (2, "Int64Value"),
        "max_enqueued_batches": (3, "Int64Value"),
        "num_batch_threads": (4, "Int64Value"),
        "thread_pool_name": (5, "StringValue"),
        "allowed_batch_sizes": (6, "repeated int64"),
        "pad_variable_length_inputs": (7, "bool"),
        "enable_large_batch_splitting": (8, "BoolValue"),
        "max_execution_batch_size": (9, "Int64Value"),
    },
    "LogMetadata": {
        "model_spec": (1, "ModelSpec"),
        "sampling_config": (2, "SamplingConfig"),
        "saved_model_tags": (3, "repeated string"),
        "timestamp_secs": (4, "int64"),
    },
    # Request and response stay serialized: on the wire a message within a message is its bytes.
    "CallLog": {"request": (1, "bytes"), "response": (2, "bytes")},
    "PredictionLog": {
        "log_metadata": (1, "LogMetadata"),
        "classify_log": (2, "oneof:log_type CallLog"),
        "regress_log": (3, "oneof:log_type CallLog"),
        "multi_inference_log": (4, "oneof:log_type CallLog"),
        "session_run_log": (5, "oneof:log_type CallLog"),
        "predict_log": (6, "oneof:log_type CallLog"),
        "predict_streamed_log": (7, "oneof:log_type CallLog"),
    },
    "ModelConfig": {
        "name": (1, "string"),
        "base_path": (2, "string"),
        "model_type": (3, "ModelType"),
        "model_platform": (4, "string"),
        "logging_config": (6, "LoggingConfig"),
        "model_version_policy": (7, "ServableVersionPolicy"),
        "version_labels": (8, "map int64"),
    },
    "ModelConfigList": {"config": (1, "repeated ModelConfig")},
    "ModelServerConfig": {
        "model_config_list": (1, "oneof:config ModelConfigList"),
        "custom_model_config": (2, "oneof:config Any"),
    },
    "ReloadConfigRequest": {"config": (1, "ModelServerConfig"), "metric_names": (2, "repeated string")},
    "ReloadConfigResponse": {"status": (1, "StatusProto")},
    "PrometheusConfig": {"enable": (1, "bool"), "path": (2, "string")},
    "MonitoringConfig": {"prometheus_config": (1, "PrometheusConfig")},
    "SSLConfig": {
        "server_key": (1, "string"),
        "server_cert": (2, "string"),
        "custom_ca": (3, "string"),
        "client_verify": (4, "bool"),
    },
    "TrafficShare": {"version": (1, "int64"), "percent": (2, "int32")},
    "SetTrafficRequest": {"model": (1, "string"), "shares": (2, "repeated TrafficShare")},
    "GetTrafficRequest": {"model": (1, "string")},
    "TrafficResponse": {
        "model": (1, "string"),
        "shares": (2, "repeated TrafficShare"),
        "in_effect": (3, "repeated TrafficShare"),
        "persisted": (4, "bool"),
    },
    "ProfileOptions": {
        "host_tracer_level": (2, "uint32"),
        "device_tracer_level": (3, "uint32"),
        "python_tracer_level": (4, "uint32"),
    },
    "ProfileRequest": {
        "duration_ms": (1, "uint64"),
        "opts": (4, "ProfileOptions"),
        "repository_root": (5, "string"),
        "session_id": (6, "string"),
        "host_name": (7, "string"),
    },
    "ProfileResponse": {"empty_trace": (7, "bool")},
    "TerminateRequest": {"session_id": (1, "string")},
    "HealthCheckRequest": {"service": (1, "string")},
    "HealthCheckResponse": {"status": (1, "int32")},
}


def _add_field(message: descriptor_pb2.DescriptorProto, name: str, number: int, declared: str) -> None:
    kind, _, base = declared.rpartition(" ")
    field = message.field.add(name=name, number=number, label=_Field.LABEL_OPTIONAL)
    if kind == "map":
        entry = message.nested_type.add(name="".join(part.capitalize() for part in name.split("_")) + "Entry")
        entry.options.map_entry = True
        _add_field(entry, "key", 1, "string")
        _add_field(entry, "value", 2, base)
        field.label, field.type = _Field.LABEL_REPEATED, _Field.TYPE_MESSAGE
        field.type_name = f".hops.{message.name}.{entry.name}"
        return
    if kind == "repeated":
        field.label = _Field.LABEL_REPEATED
    if kind.startswith("oneof:"):
        if not message.oneof_decl:
            message.oneof_decl.add(name=kind.partition(":")[2])
        field.oneof_index = 0
    if base in _SCALARS:
        field.type = _SCALARS[base]
    elif base in _ENUMS:
        field.type, field.type_name = _Field.TYPE_ENUM, f".hops.{base}Scope.{base}"
    else:
        field.type, field.type_name = _Field.TYPE_MESSAGE, f".hops.{base}"


def _declare() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="hops_serving.proto", package="hops", syntax="proto3")
    for name, values in _ENUMS.items():
        # The values of an enumeration share a scope with all others: each enumeration lies in a message of its own.
        holder = file.message_type.add(name=f"{name}Scope")
        enumeration = holder.enum_type.add(name=name)
        for value, number in values.items():
            enumeration.value.add(name=value, number=number)
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, (number, declared) in fields.items():
            _add_field(message, field, number, declared)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"hops.{name}")) for name in _MESSAGES}


_CLASSES = _declare()

RequestHead: Any = _CLASSES["RequestHead"]
"""The first field of Predict, Classify and Regress requests: enough to find out who is to answer."""
MultiInferenceHead: Any = _CLASSES["MultiInferenceHead"]
PredictShapes: Any = _CLASSES["PredictShapes"]
"""A Predict request without the values of its tensors."""
ResponseSpec: Any = _CLASSES["ResponseSpec"]
"""The ``model_spec`` of a response to Predict, Classify or Regress: what answered."""
TensorProto: Any = _CLASSES["TensorProto"]
TensorShapeProto: Any = _CLASSES["TensorShapeProto"]
SignatureDefMap: Any = _CLASSES["SignatureDefMap"]
SavedModel: Any = _CLASSES["SavedModel"]
"""The signatures of a SavedModel's file."""
PredictRequest: Any = _CLASSES["PredictRequest"]
PredictResponse: Any = _CLASSES["PredictResponse"]
Example: Any = _CLASSES["Example"]
ClassificationRequest: Any = _CLASSES["ClassificationRequest"]
ClassificationResponse: Any = _CLASSES["ClassificationResponse"]
RegressionRequest: Any = _CLASSES["RegressionRequest"]
RegressionResponse: Any = _CLASSES["RegressionResponse"]
MultiInferenceRequest: Any = _CLASSES["MultiInferenceRequest"]
MultiInferenceResponse: Any = _CLASSES["MultiInferenceResponse"]
SerializedInferenceRequest: Any = _CLASSES["SerializedInferenceRequest"]
"""A Classify or Regress request whose examples are left serialized."""
SerializedMultiInferenceRequest: Any = _CLASSES["SerializedMultiInferenceRequest"]
GetModelMetadataRequest: Any = _CLASSES["GetModelMetadataRequest"]
GetModelMetadataResponse: Any = _CLASSES["GetModelMetadataResponse"]
GetModelStatusRequest: Any = _CLASSES["GetModelStatusRequest"]
GetModelStatusResponse: Any = _CLASSES["GetModelStatusResponse"]
ModelConfig: Any = _CLASSES["ModelConfig"]
ModelServerConfig: Any = _CLASSES["ModelServerConfig"]
BatchingParameters: Any = _CLASSES["BatchingParameters"]
PredictionLog: Any = _CLASSES["PredictionLog"]
ReloadConfigRequest: Any = _CLASSES["ReloadConfigRequest"]
ReloadConfigResponse: Any = _CLASSES["ReloadConfigResponse"]
MonitoringConfig: Any = _CLASSES["MonitoringConfig"]
SSLConfig: Any = _CLASSES["SSLConfig"]
SetTrafficRequest: Any = _CLASSES["SetTrafficRequest"]
GetTrafficRequest: Any = _CLASSES["GetTrafficRequest"]
TrafficResponse: Any = _CLASSES["TrafficResponse"]
ProfileRequest: Any = _CLASSES["ProfileRequest"]
ProfileResponse: Any = _CLASSES["ProfileResponse"]
TerminateRequest: Any = _CLASSES["TerminateRequest"]
HealthCheckRequest: Any = _CLASSES["HealthCheckRequest"]
HealthCheckResponse: Any = _CLASSES["HealthCheckResponse"]
