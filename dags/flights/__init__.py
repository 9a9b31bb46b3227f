"""The flights pipeline's own code: joins (Spark), features (TensorFlow), model (Keras)."""
