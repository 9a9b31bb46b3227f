"""Explanations by the model server."""
