"""Metrics of models, and the comparison of two models."""
