"""Evaluates a model on held-out rows, and compares it with the champion on the same rows."""
