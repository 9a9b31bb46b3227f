"""The Open Inference Protocol (v2) on the model server's ports, beside TensorFlow Serving's API."""
