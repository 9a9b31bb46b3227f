"""Evaluation: a model on held-out rows, against the champion on the same rows."""
