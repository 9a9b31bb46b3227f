"""Kinds of model server on Kubernetes, for both sides."""
