"""Pipelines: definitions, runs and activity."""
