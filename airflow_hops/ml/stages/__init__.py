"""Stages of a pipeline, one module or package each."""
