"""TensorFlow Serving's API without TensorFlow: messages, tensors, config files, a client. Both sides import it."""
