"""A fleet in the model server: one servable that routes each row to the model of its segment."""

import os

# Otherwise importing ONNX Runtime writes a temporary file of a fixed name, which follows another user's symbolic link.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
