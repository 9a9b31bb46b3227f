"""Pipelines: what they are, and what goes on with them."""
