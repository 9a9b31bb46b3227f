"""A fleet in the model server: one servable that routes each row to the model of its segment."""

import os

# onnxruntime 1.31: an import writes a temporary file of a fixed name otherwise, through another user's symbolic link.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
