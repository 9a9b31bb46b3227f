"""Batch prediction: a model's signature over whole examples, in Spark's executors."""
