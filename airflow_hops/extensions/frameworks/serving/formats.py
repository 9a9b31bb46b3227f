"""Formats of models besides SavedModels."""

from airflow_hops.serving.models.formats import ModelFormat, lazy_opener

_SERVING = "airflow_hops.extensions.frameworks.serving"

ONNX = ModelFormat(
    "ONNX", ("model.onnx",), lazy_opener(f"{_SERVING}.onnx", "OnnxServable"), distributions=("onnx", "onnxruntime")
)
SKOPS = ModelFormat(
    "scikit-learn",
    ("model.skops", "model.pkl", "model.joblib"),
    lazy_opener(f"{_SERVING}.scikit_learn", "EstimatorServable"),
    distributions=("skops",),
)
