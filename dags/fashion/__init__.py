"""The fashion pipeline's own code: where the images are, and the model."""
