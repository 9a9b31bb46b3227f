"""Batching in the model server: requests that wait for one model run together, as in TensorFlow Serving."""
