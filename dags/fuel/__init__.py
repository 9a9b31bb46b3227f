"""The fuel pipeline's own code: where the cars are, how Spark reads them, and features (TensorFlow)."""
