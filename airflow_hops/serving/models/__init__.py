"""Finds, loads, calls and unloads models."""

import os

# Otherwise importing ONNX Runtime writes a temporary file of a fixed name, which follows another user's symbolic link.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
