"""Batch prediction: runs a model's signature on all examples in Spark's executors."""
