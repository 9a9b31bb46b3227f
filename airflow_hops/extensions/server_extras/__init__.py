"""Worker processes, batches, metrics, logs and models in stores, for a model server with much to do."""
