"""Serves ONNX graphs and estimators of scikit-learn."""

import os

# onnxruntime 1.31: an import writes a temporary file of a fixed name otherwise, through another user's symbolic link.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
