"""Places of ranks and kinds of model server on Kubernetes, for both sides."""
