"""Preparation of examples: options and engines."""
