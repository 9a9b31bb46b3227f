"""Serves ONNX graphs and estimators of scikit-learn."""

import os

# Otherwise importing ONNX Runtime writes a temporary file of a fixed name, which follows another user's symbolic link.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
